//! The trace is exact for programs that others built.
//!
//! In: one program that counts, built in many ways with many versions of Tokio.
//! Out: for each build and each kind of event whether the trace has exactly what
//! the program counted. Never: a tolerance.
//!
//! `cargo xtask matrix` goes through all of them, `cargo xtask test` through a
//! few.
#![expect(clippy::cast_precision_loss, reason = "it reports")]

mod build;
mod cells;
mod compilers;
mod judge;
mod table;
mod twin;

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
    time::Instant,
};

use cells::{Cell, LATEST, Shape};
use dial9_bpf_integration::require_root;
use table::{Measured, Row};

/// Where `cargo xtask matrix` says which cells, whether only their names are
/// wanted, whether only those that are built already, and where the table goes.
const ONLY: &str = "DIAL9_BPF_MATRIX_ONLY";
const LIST: &str = "DIAL9_BPF_MATRIX_LIST";
const BUILT: &str = "DIAL9_BPF_MATRIX_BUILT";
const TABLE: &str = "DIAL9_BPF_MATRIX_TABLE";

#[test]
#[ignore = "takes long: cargo xtask matrix runs it"]
fn as_many_as_told() {
    let only = env::var(ONLY).unwrap_or_default();
    let told = |cell: &Cell| only.split(',').any(|part| cell.name().contains(part));
    let cells: Vec<_> = cells::all().into_iter().filter(told).collect();
    if env::var_os(LIST).is_some() {
        for cell in &cells {
            println!("{}", cell.name());
        }
        return;
    }
    require_root();
    let may_build = env::var_os(BUILT).is_none();
    let mut rows = Vec::new();
    for (index, &cell) in cells.iter().enumerate() {
        let begin = Instant::now();
        let row = measure(cell, may_build);
        println!(
            "{}/{} {:.0?} {}",
            index + 1,
            cells.len(),
            begin.elapsed(),
            table::line(&row)
        );
        rows.push(row);
        let next = cells.get(index + 1);
        if may_build && next.is_none_or(|next| next.group() != cell.group()) {
            build::clean(cell).expect("our own folder can be removed");
        }
    }
    let summary = table::summary(&rows);
    println!("\n{summary}");
    if let Some(path) = env::var_os(TABLE) {
        let text = table::document(&rows);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// A few for every run of the tests: the oldest Tokio, wakes that are inlined,
/// small code, no optimization.
#[test]
fn of_a_few_builds() {
    require_root();
    let few = [
        Cell::new("1.24.2", Shape::Release),
        Cell::new("1.36.0", Shape::Fat),
        Cell::new("1.47.5", Shape::Smallest),
        Cell::new(LATEST, Shape::Debug),
    ];
    for cell in few {
        let row = measure(cell, true);
        build::clean(cell).expect("our own folder can be removed");
        let line = table::line(&row);
        let measured = row.result.unwrap_or_else(|_| panic!("{line}"));
        assert!(table::is_exact(&measured.plain), "{line}");
        assert!(table::is_exact(&measured.stripped), "{line}");
        assert!(measured.twin.is_equal(), "{line}");
    }
}

/// Builds a cell, records it and its stripped twin.
fn measure(cell: Cell, may_build: bool) -> Row {
    let binary = match build::build(cell, may_build) {
        Ok(binary) => binary,
        Err(error) => {
            let result = Err(format!("{error:#}"));
            return Row { cell, result };
        }
    };
    // A cell that hangs or crashes is a result.
    let measured = panic::catch_unwind(AssertUnwindSafe(|| measure_binary(&binary)));
    let result = measured.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.unwrap_or_else(|| "failed".to_owned())
    });
    Row { cell, result }
}

fn measure_binary(binary: &Path) -> Measured {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let stripped = folder.path().join("stripped");
    let twin = twin::compare(binary, &stripped).unwrap_or_else(|error| panic!("{error:#}"));
    Measured {
        plain: judge::judge(binary),
        stripped: judge::judge(&stripped),
        twin,
    }
}
