//! `xtask test`: everything that is checked, in one run.
//!
//! In: the sources and, for the last part, root. Out: one line at the end with
//! what passed and failed. A failed part does not stop the others.

use std::process::ExitCode;

use anyhow::Result;

use crate::lint::{Step, step, with_host};
use crate::setup::{self, Scope};
use crate::{build_ebpf, fuzz, lint, shell, tidy};

/// What the parts came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    /// Parts that failed, or came to no result.
    parts: Vec<String>,
}

/// The verb. Nothing is printed after the line with the counts.
pub(crate) fn run() -> Result<ExitCode> {
    setup::ensure(Scope::All)?;
    build_ebpf::ensure()?;
    let mut tally = Tally::default();
    for step in lint::steps() {
        tally.run(step)?;
    }
    println!("test: tidy");
    if let Err(error) = tidy::run() {
        println!("{error:#}");
        tally.fail("tidy");
    }
    for step in pure() {
        tally.run(step)?;
    }
    println!("test: fuzz");
    if let Err(error) = fuzz::run(&fuzz::Args::brief()) {
        println!("{error:#}");
        tally.fail("fuzz");
    }
    if shell::is_root() {
        tally.run(integration())?;
    } else {
        println!("test: the integration tests need root: not run");
        tally.fail("integration");
    }
    Ok(tally.report())
}

/// Tests that need no kernel, and the release build that the others start.
fn pure() -> Vec<Step> {
    let without_integration = ["--exclude", "dial9-bpf-integration"];
    let tests = [
        &with_host(&["nextest", "run", "--no-fail-fast"])[..],
        &without_integration,
    ];
    let doc_tests = [
        &with_host(&["test", "--doc", "--no-fail-fast"])[..],
        &without_integration,
    ];
    vec![
        step("tests", &tests.concat()),
        step("doc tests", &doc_tests.concat()),
        step("release", &["build", "--release", "--package", "dial9-bpf"]),
    ]
}

fn integration() -> Step {
    step(
        "integration",
        &[
            "nextest",
            "run",
            "--no-fail-fast",
            "--package",
            "dial9-bpf-integration",
        ],
    )
}

impl Tally {
    fn run(&mut self, step: Step) -> Result<()> {
        println!("test: {}", step.name);
        let failed_before = self.failed;
        let succeeded = shell::watch(step.command, |line| self.count(line))?;
        if !succeeded {
            self.parts.push(step.name);
            // A part that failed otherwise than by its tests counts as one.
            if self.failed == failed_before {
                self.failed += 1;
            }
        }
        Ok(())
    }

    fn fail(&mut self, part: &str) {
        self.failed += 1;
        self.parts.push(part.to_owned());
    }

    /// Reads the summary lines of nextest and of cargo's own test runner.
    fn count(&mut self, line: &str) {
        let counts = match line.split_once("tests run:") {
            Some((before, counts)) if before.trim_start().starts_with("Summary") => counts,
            _ => match line.strip_prefix("test result:") {
                Some(counts) => counts,
                None => return,
            },
        };
        self.passed += number_before(counts, "passed");
        self.failed += number_before(counts, "failed") + number_before(counts, "timed out");
    }

    fn report(self) -> ExitCode {
        if !self.parts.is_empty() {
            println!("test: failed: {}", self.parts.join(", "));
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.parts.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// The number in front of `word`; 0 where the word does not occur.
fn number_before(text: &str, word: &str) -> u64 {
    text.split_once(word)
        .and_then(|(before, _)| before.split_whitespace().next_back())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[track_caller]
    fn check(lines: &[&str], passed: u64, failed: u64) {
        let mut tally = Tally::default();
        for line in lines {
            tally.count(line);
        }
        assert_eq!((tally.passed, tally.failed), (passed, failed));
    }

    #[test]
    fn nextest_summaries_are_counted() {
        check(
            &[
                "        PASS [   0.004s] a::b passed",
                "     Summary [   3.4s] 23 tests run: 20 passed (1 slow), 2 failed, 1 timed out, 4 skipped",
            ],
            20,
            3,
        );
    }

    #[test]
    fn cargo_test_results_are_counted() {
        check(
            &[
                "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
                "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            ],
            5,
            2,
        );
    }
}
