//! What the table has rows for.
//!
//! In: nothing. Out: signals, and the integration tests that show them. Never: a test that
//! has to build something, or needs more than the machine has.

/// A signal.
pub(super) struct Row {
    /// What it is called in the table.
    pub(super) what: &'static str,
    /// Test files and tests in them; all have to pass.
    pub(super) tests: &'static [(&'static str, &'static str)],
    /// What a recording calls it where it says that it is absent.
    pub(super) absent: &'static [&'static str],
}

pub(super) const ROWS: [Row; 16] = [
    Row {
        what: "attach: polls, wakes, spawns, ends",
        tests: &[("truth", "of_tasks_with_different_layouts")],
        absent: &[],
    },
    Row {
        what: "a program from its start on (`run`)",
        tests: &[(
            "launched",
            "every_spawn_is_exact_and_nothing_was_there_before",
        )],
        absent: &[],
    },
    Row {
        what: "parks, with CPU times",
        tests: &[("single", "of_a_plain_build")],
        absent: &["cpu-time"],
    },
    Row {
        what: "off the CPU, with wakers",
        tests: &[("sched", "the_scheduler_alone")],
        absent: &["off-cpu", "thread-wakes"],
    },
    Row {
        what: "CPU profile, and stacks of waits in polls",
        tests: &[("profile", "shares_and_waits_at_a_lower_rate")],
        absent: &["cpu-profile", "off-cpu-stacks"],
    },
    Row {
        what: "names of functions, the kernel's too",
        tests: &[
            (
                "symbols",
                "every_function_of_a_program_has_the_name_that_its_symbol_has",
            ),
            (
                "symbols",
                "the_kernels_functions_have_the_names_of_its_table",
            ),
        ],
        absent: &[],
    },
    Row {
        what: "block I/O, with syncs",
        tests: &[
            ("block_io", "direct_io_by_system_calls"),
            ("block_io", "cached_writes_and_their_syncs"),
        ],
        absent: &["block-io", "syncs"],
    },
    Row {
        what: "accept queues",
        tests: &[("net", "a_few_arrivals_are_counted")],
        absent: &["accept-queues"],
    },
    Row {
        what: "resources of the process",
        tests: &[("sched", "the_process_as_a_whole")],
        absent: &["resources"],
    },
    Row {
        what: "queues of runtimes",
        tests: &[("queues", "of_a_plain_build")],
        absent: &["runtime-metrics"],
    },
    Row {
        what: "declared probes (`--probes`)",
        tests: &[("declared", "every_call_with_its_arguments_and_its_result")],
        absent: &[],
    },
    Row {
        what: "forks (`--follow-forks`)",
        tests: &[("forks", "beyond_the_limit_they_wait")],
        absent: &["sched_process_fork"],
    },
    Row {
        what: "exec",
        tests: &[("exec", "from_another_thread")],
        absent: &["exec"],
    },
    Row {
        what: "the target's end",
        tests: &[
            ("ends", "an_exit_of_a_task_has_its_code"),
            ("ends", "a_fault_has_its_thread_and_its_address"),
            ("ends", "a_signal_to_the_process_has_no_thread"),
        ],
        absent: &["sched_process_exit", "signal_deliver"],
    },
    Row {
        what: "panics",
        tests: &[("ends", "every_panic_has_its_place_its_task_and_its_message")],
        absent: &["panic", "panic-message"],
    },
    Row {
        what: "a killed recorder's rings (`--keep-rings`)",
        tests: &[
            (
                "keep",
                "a_target_that_exits_meanwhile_is_named_with_what_nobody_read",
            ),
            ("keep", "a_target_that_exits_ends_what_is_kept"),
        ],
        absent: &["cannot keep the rings"],
    },
];
