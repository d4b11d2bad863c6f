//! The cells of the matrix: Tokio's version × how the program is built × the
//! compiler.
//!
//! In: nothing. Out: what a cell is called and what its manifest and flags are.
//! Never: a build.

use std::{fmt::Write as _, path::Path};

/// Exact versions, oldest first; the last is the latest.
pub(crate) const VERSIONS: [&str; 7] = [
    "1.24.2", "1.28.2", "1.36.0", "1.44.2", "1.47.5", "1.50.0", LATEST,
];
/// The latest version that the matrix knows.
pub(crate) const LATEST: &str = "1.54.1";
/// Without offsets in the vtable, so that only symbols could tell where ids are.
const BEFORE_OFFSETS: [&str; 4] = ["1.20.6", "1.21.2", "1.22.0", "1.23.1"];

/// How a program is built; all but `Debug` by `cargo build --release`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// Cargo's defaults.
    Release,
    /// `lto = "fat"` and one unit of code.
    Fat,
    /// `lto = "thin"`.
    Thin,
    /// `panic = "abort"`.
    Abort,
    /// `opt-level = "s"`.
    Small,
    /// `opt-level = "z"`.
    Smallest,
    /// `cargo build`.
    Debug,
    /// `strip = "symbols"`.
    Stripped,
    /// Symbols of the second mangling.
    V0,
    /// Not position independent.
    NoPie,
    /// With glibc in it.
    Static,
    /// With musl in it.
    Musl,
    /// Functions begin with `endbr64`.
    Cet,
    /// jemalloc as the allocator.
    Jemalloc,
    /// mimalloc as the allocator.
    Mimalloc,
}

impl Shape {
    /// Every one.
    pub(crate) const ALL: [Self; 15] = [
        Self::Release,
        Self::Fat,
        Self::Thin,
        Self::Abort,
        Self::Small,
        Self::Smallest,
        Self::Debug,
        Self::Stripped,
        Self::V0,
        Self::NoPie,
        Self::Static,
        Self::Musl,
        Self::Cet,
        Self::Jemalloc,
        Self::Mimalloc,
    ];

    /// As cells are named.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Fat => "lto-fat",
            Self::Thin => "lto-thin",
            Self::Abort => "abort",
            Self::Small => "opt-s",
            Self::Smallest => "opt-z",
            Self::Debug => "debug",
            Self::Stripped => "stripped",
            Self::V0 => "v0",
            Self::NoPie => "no-pie",
            Self::Static => "static",
            Self::Musl => "musl",
            Self::Cet => "cet",
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
        }
    }

    const fn profile(self) -> &'static str {
        match self {
            Self::Fat => "lto = \"fat\"\ncodegen-units = 1",
            Self::Thin => "lto = \"thin\"",
            Self::Abort => "panic = \"abort\"",
            Self::Small => "opt-level = \"s\"",
            Self::Smallest => "opt-level = \"z\"",
            Self::Stripped => "strip = \"symbols\"",
            _ => "",
        }
    }

    const fn flags(self) -> &'static str {
        match self {
            Self::V0 => "-Csymbol-mangling-version=v0",
            Self::NoPie => "-Crelocation-model=static",
            Self::Static => "-Ctarget-feature=+crt-static",
            Self::Cet => "-Zcf-protection=full",
            _ => "",
        }
    }

    /// The target that is named to cargo: only where one is, executables can be static.
    pub(crate) const fn target(self) -> Option<&'static str> {
        match self {
            Self::Static => Some("x86_64-unknown-linux-gnu"),
            Self::Musl => Some("x86_64-unknown-linux-musl"),
            _ => None,
        }
    }

    /// The package of its allocator, which is its feature too.
    const fn allocator(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Jemalloc => Some(("jemalloc", "tikv-jemallocator = \"=0.6.0\"")),
            Self::Mimalloc => Some(("mimalloc", "mimalloc = \"=0.1.43\"")),
            _ => None,
        }
    }
}

/// What compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Compiler {
    /// That of this repository.
    Here,
    /// Debian's 1.85.
    Debian185,
    /// Debian's 1.63.
    Debian163,
}

impl Compiler {
    /// Its version, as cells are named.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Here => "",
            Self::Debian185 => "1.85",
            Self::Debian163 => "1.63",
        }
    }

    const fn rust_version(self) -> &'static str {
        match self {
            Self::Here => "1.95",
            Self::Debian185 => "1.85",
            Self::Debian163 => "1.63",
        }
    }
}

/// A program to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// Tokio's version.
    pub(crate) tokio: &'static str,
    /// Whether with `--cfg tokio_unstable`.
    pub(crate) unstable: bool,
    /// How it is built.
    pub(crate) shape: Shape,
    /// By which compiler.
    pub(crate) compiler: Compiler,
}

/// Every cell; those that can share what they build are together.
pub(crate) fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for shape in Shape::ALL {
        let of_shape = VERSIONS.map(|tokio| Cell::new(tokio, shape));
        cells.extend(of_shape);
        let with_unstable =
            |cell: &Cell| cell.tokio == LATEST || matches!(shape, Shape::Release | Shape::Fat);
        let unstable = of_shape.into_iter().filter(with_unstable);
        cells.extend(unstable.map(|cell| Cell {
            unstable: true,
            ..cell
        }));
        if matches!(shape, Shape::Release | Shape::Fat) {
            cells.extend(BEFORE_OFFSETS.map(|tokio| Cell::new(tokio, shape)));
        }
    }
    let shapes = [Shape::Release, Shape::Fat, Shape::Stripped];
    for shape in shapes {
        for tokio in VERSIONS {
            cells.push(Cell::new(tokio, shape).by(Compiler::Debian185));
        }
    }
    for shape in shapes {
        // Later ones need a later compiler: 1.39 says 1.70.
        for tokio in ["1.24.2", "1.28.2", "1.36.0"] {
            cells.push(Cell::new(tokio, shape).by(Compiler::Debian163));
        }
    }
    cells
}

impl Cell {
    /// Stable, by the compiler here.
    pub(crate) const fn new(tokio: &'static str, shape: Shape) -> Self {
        Self {
            tokio,
            unstable: false,
            shape,
            compiler: Compiler::Here,
        }
    }

    /// The same by another compiler.
    pub(crate) const fn by(self, compiler: Compiler) -> Self {
        Self { compiler, ..self }
    }

    /// Such as `1.36.0-lto-fat`, `1.54.1-unstable-release`,
    /// `1.28.2-release-rustc1.63`.
    pub(crate) fn name(self) -> String {
        let mut name = self.tokio.to_owned();
        if self.unstable {
            name.push_str("-unstable");
        }
        let _ = write!(name, "-{}", self.shape.name());
        if self.compiler != Compiler::Here {
            let _ = write!(name, "-rustc{}", self.compiler.name());
        }
        name
    }

    /// Cells of one group share a target directory.
    pub(crate) fn group(self) -> String {
        format!("{}{}", self.shape.name(), self.compiler.name())
    }

    /// The features of the program.
    pub(crate) fn features(self) -> String {
        // `JoinHandle::id` is stable from 1.41 on.
        let has_ids = self.unstable || self.minor() >= 41;
        let ids = has_ids.then_some("ids");
        let allocator = self.shape.allocator().map(|(feature, _)| feature);
        ids.into_iter()
            .chain(allocator)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// `RUSTFLAGS`.
    pub(crate) fn flags(self) -> String {
        let unstable = if self.unstable {
            "--cfg tokio_unstable"
        } else {
            ""
        };
        format!("{} {unstable}", self.shape.flags())
            .trim()
            .to_owned()
    }

    /// Whether from the versions on for which the design promises most.
    pub(crate) fn is_promised(self) -> bool {
        self.minor() >= 28
    }

    fn minor(self) -> u32 {
        let minor = self.tokio.split('.').nth(1);
        minor
            .and_then(|minor| minor.parse().ok())
            .expect("a version")
    }

    /// Its `Cargo.toml`, for the source at `program`.
    pub(crate) fn manifest(self, program: &Path) -> String {
        let allocator = self.shape.allocator();
        let allocator = allocator.map_or("", |(_, dependency)| dependency);
        format!(
            r#"[workspace]

[package]
name = "counted"
version = "0.0.0"
edition = "2021"
# What the oldest compiler can build: cargo picks the dependencies by it.
rust-version = "{rust_version}"

[features]
ids = []
jemalloc = []
mimalloc = []

[[bin]]
name = "counted"
path = "{program}"

[dependencies]
tokio = {{ version = "={tokio}", features = ["rt-multi-thread", "sync", "time"] }}
{allocator}

[profile.release]
{profile}
"#,
            program = program.display(),
            tokio = self.tokio,
            profile = self.shape.profile(),
            rust_version = self.compiler.rust_version(),
        )
    }
}
