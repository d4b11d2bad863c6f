//! A load of requests, and what came back.
//!
//! In: an address. Out: how many requests were answered and how, as oha counts
//! them. Never: a load without an end.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::program;

/// Requests of one load.
pub(super) const REQUESTS: u64 = 20_000;
/// Connections of one load.
pub(super) const CONNECTIONS: u64 = 20;

/// What one load got.
#[derive(Debug, PartialEq)]
pub(super) struct Load {
    /// Answers by status, and requests without one by what went wrong.
    pub(super) answers: BTreeMap<String, u64>,
    /// Bytes of all bodies.
    pub(super) bytes: u64,
    /// Requests a second.
    pub(super) per_second: f64,
    /// What half of the requests took at most, seconds.
    pub(super) half_s: f64,
    /// What 95 % of them took at most, seconds.
    pub(super) most_s: f64,
}

/// oha with its arguments, which end by themselves: a request takes at most 10 s.
pub(super) fn oha(url: &str) -> Vec<String> {
    let oha = program("oha").display().to_string();
    let [requests, connections] = [REQUESTS, CONNECTIONS].map(|number| number.to_string());
    [&oha, "-n", &requests, "-c", &connections, "-t", "10s"]
        .into_iter()
        .chain(["--no-tui", "--disable-compression"])
        .chain(["--output-format", "json", url])
        .map(str::to_owned)
        .collect()
}

/// Puts a load on `url`.
pub(super) fn run(url: &str, log: &Path) -> Result<Load> {
    let words = oha(url);
    let (load, status) = of_command(Command::new(&words[0]).args(&words[1..]), log)?;
    anyhow::ensure!(
        status.success(),
        "{status}: {words:?}, see {}",
        log.display()
    );
    Ok(load)
}

/// Runs a command that prints oha's result; what it says beside goes to `log`.
pub(super) fn of_command(command: &mut Command, log: &Path) -> Result<(Load, ExitStatus)> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let output = command
        .stdin(Stdio::null())
        .stderr(file)
        .output()
        .with_context(|| format!("cannot start: {command:?}"))?;
    let load = String::from_utf8(output.stdout)
        .ok()
        .and_then(|printed| Load::parse(&printed))
        .with_context(|| {
            format!(
                "{}: {command:?}, no result, see {}",
                output.status,
                log.display()
            )
        })?;
    Ok((load, output.status))
}

impl Load {
    /// Of oha's result.
    fn parse(printed: &str) -> Option<Self> {
        let result: Value = serde_json::from_str(printed).ok()?;
        let mut answers = BTreeMap::new();
        for kind in ["statusCodeDistribution", "errorDistribution"] {
            for (name, count) in result[kind].as_object()? {
                answers.insert(name.clone(), count.as_u64()?);
            }
        }
        Some(Self {
            answers,
            bytes: result["summary"]["totalData"].as_u64()?,
            per_second: result["summary"]["requestsPerSec"].as_f64()?,
            half_s: result["latencyPercentiles"]["p50"].as_f64()?,
            most_s: result["latencyPercentiles"]["p95"].as_f64()?,
        })
    }

    /// Requests that were answered with 200.
    pub(super) fn ok(&self) -> u64 {
        self.answers.get("200").copied().unwrap_or(0)
    }

    /// What is not as it should be, where each answer has a body of `size` bytes.
    pub(super) fn problems(&self, size: u64) -> Vec<String> {
        let mut problems = Vec::new();
        if self.ok() != REQUESTS || self.answers.len() != 1 {
            problems.push(format!(
                "{:?} answered instead of {REQUESTS} times 200",
                self.answers
            ));
        }
        if self.bytes != REQUESTS * size {
            problems.push(format!(
                "{} bytes instead of {REQUESTS} times {size}",
                self.bytes
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::{Load, REQUESTS};

    fn load(statuses: &str, errors: &str, bytes: u64) -> Load {
        let printed = format!(
            r#"{{"summary":{{"totalData":{bytes},"requestsPerSec":9.5}},
                "latencyPercentiles":{{"p50":0.001,"p95":0.04}},
                "statusCodeDistribution":{{{statuses}}},"errorDistribution":{{{errors}}}}}"#
        );
        Load::parse(&printed).expect("it is a result")
    }

    #[test]
    fn all_answered() {
        let all = format!(r#""200":{REQUESTS}"#);
        let load = load(&all, "", REQUESTS * 7);
        assert_eq!(load.ok(), REQUESTS);
        assert!(load.problems(7).is_empty());
        assert_eq!(load.problems(8).len(), 1);
    }

    #[test]
    fn one_other_answer_is_enough() {
        let most = format!(r#""200":{}"#, REQUESTS - 1);
        let refused = load(&most, r#""connection refused":1"#, (REQUESTS - 1) * 7);
        assert_eq!(refused.problems(7).len(), 2);
        let missing = load(&format!(r#"{most},"404":1"#), "", REQUESTS * 7);
        assert_eq!(missing.problems(7).len(), 1);
        let more = load(&format!(r#""200":{REQUESTS},"500":1"#), "", REQUESTS * 7);
        assert_eq!(more.problems(7).len(), 1);
        assert_eq!(Load::parse("{}"), None);
    }
}
