//! What a machine has said.
//!
//! In: the lines of its console. Out: what became of each test, what recordings say of
//! themselves, and what the kernel complains about. Never: a test that passed unless it says
//! so.

use std::collections::BTreeMap;

/// The console, read.
#[derive(Debug, Default)]
pub(super) struct Console {
    /// The kernel's own name.
    pub(super) release: String,
    /// Exit codes, by test file and test.
    codes: BTreeMap<(String, String), i32>,
    /// Lines of recordings.
    said: Vec<String>,
    /// Lines of the kernel's log that should not be.
    pub(super) complaints: Vec<String>,
    /// Whether it came to its end.
    pub(super) has_ended: bool,
}

impl Console {
    pub(super) fn read(said: &str) -> Self {
        let mut console = Self::default();
        let mut test = None;
        for line in said.lines() {
            // What the firmware or the kernel left on the line stands before it.
            let Some((word, rest)) = line
                .split_once('@')
                .map(|(_, mark)| mark.split_once(' ').unwrap_or((mark, "")))
            else {
                continue;
            };
            match word {
                "kernel" => rest.clone_into(&mut console.release),
                "said" => console.said.push(rest.to_owned()),
                "complaint" => console.complaints.push(rest.to_owned()),
                "end" => console.has_ended = true,
                "test" => test = rest.split_once(' '),
                "code" => {
                    let code = rest.split(' ').next().and_then(|code| code.parse().ok());
                    if let (Some((file, name)), Some(code)) = (test.take(), code) {
                        let test = (file.to_owned(), name.to_owned());
                        console.codes.insert(test, code);
                    }
                }
                _ => {}
            }
        }
        console
    }

    /// Whether the test passed.
    pub(super) fn passed(&self, file: &str, test: &str) -> bool {
        let key = (file.to_owned(), test.to_owned());
        self.codes.get(&key) == Some(&0)
    }

    /// Why a recording has not what goes by these names: in its own words, or those with
    /// which it refused to be.
    pub(super) fn reason(&self, names: &[&str]) -> Option<&str> {
        let is_refusal = |line: &&String| line.starts_with("dial9-bpf: ");
        let is_about = |line: &&String| names.iter().any(|name| line.contains(name));
        let mut lines = self.said.iter();
        let line = lines.clone().find(|line| {
            let tells = line.starts_with("missing: ") || is_refusal(line);
            tells && is_about(line)
        });
        // Where nothing can be recorded, the first refusal is that of all.
        let refused = || lines.next().filter(is_refusal);
        let line = line.or_else(refused)?;
        let prefixes = ["dial9-bpf: ", "missing: "];
        let text = prefixes.iter().find_map(|prefix| line.strip_prefix(prefix));
        Some(text.unwrap_or(line))
    }
}

#[cfg(test)]
mod tests {
    use super::Console;

    #[test]
    fn a_test_passes_only_if_it_says_so() {
        let console = Console::read(
            "Booting..@kernel 6.1\n@test a b\n@code 0 3\n@test a c\nwhy\n@code 101 1\n@test a d",
        );
        assert_eq!(console.release, "6.1");
        let passed = ["b", "c", "d"].map(|test| console.passed("a", test));
        assert_eq!(passed, [true, false, false]);
        assert!(!console.has_ended);
    }

    #[test]
    fn what_cannot_be_recorded_has_one_reason() {
        let console = Console::read("@said dial9-bpf: the kernel is too old\n@end");
        assert_eq!(console.reason(&["net"]), Some("the kernel is too old"));
    }

    #[test]
    fn what_is_absent_has_its_own() {
        let console = Console::read(
            "@said attached\n@said missing: off-cpu: why\n@said dial9-bpf: cannot keep the rings",
        );
        assert_eq!(console.reason(&["off-cpu"]), Some("off-cpu: why"));
        assert_eq!(console.reason(&["keep"]), Some("cannot keep the rings"));
        assert_eq!(console.reason(&["net"]), None);
    }
}
