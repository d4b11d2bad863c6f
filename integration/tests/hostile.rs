//! Executables that lie about what is in them, while they run.
//!
//! In: a Tokio server whose section headers and other tables, which nobody needs to
//! run it, were changed. Out: a plan or one line of reason. Never: more than 1 GiB of
//! address space, where the file has less.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::PathBuf,
};

use dial9_bpf_integration::{
    Attach, Build, Outcome, TestProgram, output_dir, require_root, target_dir::test_program,
};
use tempfile::TempDir;

/// Offsets and lengths of the ELF format.
const PROGRAM_HEADERS: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: u64 = 64;
const SYMBOL_BYTES: u64 = 24;
const PT_LOAD: u32 = 1;
const PT_GNU_STACK: u32 = 0x6474_e551;

/// The server's executable, to be changed and then run.
struct Executable {
    dir: TempDir,
    bytes: Vec<u8>,
}

/// The server, running.
struct Running {
    program: TestProgram,
    _dir: TempDir,
}

impl Executable {
    fn of_server() -> Self {
        require_root();
        let path = test_program("serve", Build::Stripped).expect("it can be built");
        Self {
            dir: output_dir(),
            bytes: fs::read(path).expect("it can be read"),
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// The place of the program header of a kind.
    fn program_header(&self, kind: u32) -> usize {
        let count = u16::from_le_bytes(self.bytes[56..58].try_into().expect("two bytes"));
        (0..usize::from(count))
            .map(|index| PROGRAM_HEADERS + index * PROGRAM_HEADER_BYTES)
            .find(|&at| self.bytes[at..at + 4] == kind.to_le_bytes())
            .expect("every executable has one")
    }

    /// Section headers of a symbol table of `symbols` and of names that are
    /// `name_bytes` of the letter a; the symbols all have the whole of it as a name.
    fn with_symbols(mut self, symbols: u64, name_bytes: u64) -> (Self, u64) {
        let table = self.bytes.len().next_multiple_of(8) as u64;
        let symbols_at = table + 3 * SECTION_HEADER_BYTES;
        let names_at = symbols_at + symbols * SYMBOL_BYTES;
        self.put(0x28, &table.to_le_bytes());
        self.put(0x3c, &3u16.to_le_bytes());
        self.put(0x3e, &0u16.to_le_bytes());
        self.bytes.resize(usize::try_from(table).expect("small"), 0);
        for (kind, at, bytes, link) in [
            (0u32, 0, 0, 0u32),
            (2, symbols_at, symbols * SYMBOL_BYTES, 2),
            (3, names_at, name_bytes, 0),
        ] {
            self.bytes.extend(0u32.to_le_bytes());
            self.bytes.extend(kind.to_le_bytes());
            for word in [0, 0, at, bytes] {
                self.bytes.extend(word.to_le_bytes());
            }
            self.bytes.extend(link.to_le_bytes());
            self.bytes.extend([0; 20]);
        }
        (self, symbols_at)
    }

    /// Runs it, after `prepare` has had its way with the file.
    fn run(self, prepare: impl FnOnce(&File)) -> Running {
        let Self { dir, bytes } = self;
        let path: PathBuf = dir.path().join("server");
        fs::write(&path, &bytes).expect("there is room");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let file = File::options().write(true).open(&path).expect("it is ours");
        prepare(&file);
        drop(file);
        Running {
            program: TestProgram::start_at(&path, |_| ()),
            _dir: dir,
        }
    }
}

impl Running {
    fn dry_run(&self, under: &[&str]) -> Outcome {
        let output = output_dir();
        Attach::to(self.program.pid(), output.path())
            .arg("--dry-run")
            .under(under)
            .outcome()
    }
}

/// No more memory than this, mapped or not.
const A_GIB: [&str; 2] = ["prlimit", "--as=1073741824"];

#[test]
fn ten_million_symbols() {
    let (server, symbols) = Executable::of_server().with_symbols(10_000_000, 1 << 20);
    let end = symbols + 10_000_000 * SYMBOL_BYTES + (1 << 20);
    let server = server.run(|file| file.set_len(end).expect("a hole"));
    let outcome = server.dry_run(&A_GIB);
    outcome.expect_failure(6, &["10000000 symbols, more than 4194304"]);
}

/// Each of the names goes on to the end of the file.
#[test]
fn names_without_an_end() {
    const SYMBOLS: u64 = 1 << 20;
    const NAME_BYTES: u64 = 64 << 20;
    let (server, at) = Executable::of_server().with_symbols(SYMBOLS, NAME_BYTES);
    let server = server.run(|file| {
        let mut symbol = [0; 24];
        symbol[4..8].copy_from_slice(&[0x12, 0, 1, 0]);
        let symbols = symbol.repeat(usize::try_from(SYMBOLS).expect("it fits"));
        file.write_all_at(&symbols, at).expect("there is room");
        let names = b"bind_inner panic_with_hook _Unwind".repeat(2 << 20);
        let names = &names[..usize::try_from(NAME_BYTES).expect("it fits")];
        let end = at + SYMBOLS * SYMBOL_BYTES;
        file.write_all_at(names, end).expect("there is room");
    });
    let outcome = server.dry_run(&A_GIB);
    outcome.expect(0);
    let miss = "missing: spawn: too many symbols have bind_inner in their names";
    assert!(outcome.stdout.contains(miss), "{outcome:#?}");
}

#[test]
fn more_sections_than_there_are() {
    let mut server = Executable::of_server();
    server.put(0x3c, &0xfeff_u16.to_le_bytes());
    let outcome = server.run(|_| ()).dry_run(&A_GIB);
    outcome.expect_failure(6, &["65279 sections, more than 4096"]);
}

/// All that is behind what is loaded is gone.
#[test]
fn section_headers_beyond_the_end() {
    let mut server = Executable::of_server();
    server.put(0x28, &u64::MAX.to_le_bytes());
    server.run(|_| ()).dry_run(&A_GIB).expect(0);
}

/// The stack's header becomes one that loads the first page where it is already.
#[test]
fn segments_that_overlap() {
    let mut server = Executable::of_server();
    let (first, stack) = (
        server.program_header(PT_LOAD),
        server.program_header(PT_GNU_STACK),
    );
    let header = server.bytes[first..first + PROGRAM_HEADER_BYTES].to_vec();
    server.put(stack, &header);
    let outcome = server.run(|_| ()).dry_run(&A_GIB);
    outcome.expect_failure(6, &["malformed ELF file: overlapping segments"]);
}

/// Nothing of a hole is read that no table names.
#[test]
fn a_hole_of_gigabytes() {
    let server = Executable::of_server();
    let server = server.run(|file| file.set_len(15 << 30).expect("a hole"));
    server.dry_run(&["prlimit", "--as=17179869184"]).expect(0);
}

#[test]
fn a_hole_of_a_terabyte() {
    let server = Executable::of_server();
    let server = server.run(|file| file.set_len(1 << 40).expect("a hole"));
    let outcome = server.dry_run(&A_GIB);
    outcome.expect_failure(1, &["1099511627776 bytes is too large"]);
}
