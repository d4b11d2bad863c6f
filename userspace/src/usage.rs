//! What the target as a whole has used: CPU, memory, faults, I/O, switches.
//!
//! In: a pid. Out: the counters of `getrusage(2)`, since the process began; its threads'
//! names. Never: a figure that falls; a look at each thread more often than once a second.

use std::collections::{BTreeMap, HashMap};

use dial9_bpf_trace::event::ResourceUsage;
use nix::{
    sys::time::TimeValLike as _,
    time::{ClockId, clock_getcpuclockid},
    unistd::Pid,
};
use procfs::{ProcResult, process::Process};

/// `CPUCLOCK_PROF`, `CPUCLOCK_VIRT` and `CPUCLOCK_SCHED` (include/linux/posix-timers_types.h):
/// the low bits of a process's clock say which time it tells.
const CLOCK_KINDS: i32 = 3;
const USER_AND_SYSTEM: i32 = 0;
const USER: i32 = 1;
/// The kernel counts blocks of this size, bytes (`task_io_get_inblock`,
/// `include/linux/task_io_accounting_ops.h`).
const BLOCK_BYTES: u64 = 512;
/// Time between two looks at each thread, ns.
const THREADS_INTERVAL_NS: u64 = 1_000_000_000;
/// Threads whose names are kept.
const MAX_NAMES: usize = 1 << 10;

/// Reads one process.
#[derive(Debug)]
pub(crate) struct Meter {
    process: Process,
    clock: ClockId,
    /// Voluntary and involuntary switches of each thread, also of those that are gone.
    switches: HashMap<i32, [u64; 2]>,
    names: BTreeMap<u32, String>,
    threads_due_ns: u64,
    last: ResourceUsage,
}

impl Meter {
    /// A meter of a process.
    ///
    /// # Errors
    /// When there is no such process, or its files are not ours to read.
    pub(crate) fn of(pid: u32) -> ProcResult<Self> {
        let pid = i32::try_from(pid).map_err(|_| procfs::ProcError::NotFound(None))?;
        let clock = clock_getcpuclockid(Pid::from_raw(pid));
        let clock = clock.map_err(|error| procfs::ProcError::Io(error.into(), None))?;
        let mut meter = Self {
            process: Process::new(pid)?,
            clock,
            switches: HashMap::new(),
            names: BTreeMap::new(),
            threads_due_ns: 0,
            last: ResourceUsage::default(),
        };
        meter.read(0)?;
        Ok(meter)
    }

    /// The counters now, with this time.
    ///
    /// # Errors
    /// When the process has ended.
    pub(crate) fn read(&mut self, ts_ns: u64) -> ProcResult<ResourceUsage> {
        let stat = self.process.stat()?;
        let io = self.process.io()?;
        let status = self.process.status()?;
        let [user_cpu_ns, system_cpu_ns] = self.cpu_ns()?;
        if ts_ns >= self.threads_due_ns {
            self.threads_due_ns = ts_ns + THREADS_INTERVAL_NS;
            self.look_at_threads()?;
        }
        let [voluntary, involuntary] = self.switches();
        let last = &self.last;
        self.last = ResourceUsage {
            ts_ns,
            user_cpu_ns,
            system_cpu_ns,
            // kB in the file are KiB.
            max_rss_bytes: status.vmhwm.unwrap_or_default() << 10,
            minor_faults: stat.minflt,
            major_faults: stat.majflt,
            block_input_ops: io.read_bytes / BLOCK_BYTES,
            block_output_ops: io.write_bytes / BLOCK_BYTES,
            voluntary_context_switches: voluntary.max(last.voluntary_context_switches),
            involuntary_context_switches: involuntary.max(last.involuntary_context_switches),
        };
        Ok(self.last)
    }

    /// User and system time, ns. Their sum is exact; the kernel knows by ticks which is
    /// which, and divides the sum in that proportion, so that none falls
    /// (kernel/sched/cputime.c, `cputime_adjust`).
    fn cpu_ns(&self) -> ProcResult<[u64; 2]> {
        let now = |clock: ClockId| -> ProcResult<u64> {
            let time = clock.now();
            let time = time.map_err(|error| procfs::ProcError::Io(error.into(), None))?;
            Ok(time.num_nanoseconds().unsigned_abs())
        };
        let kind = |kind: i32| ClockId::from(self.clock.as_raw() & !CLOCK_KINDS | kind);
        let (all, ticks, user) = (
            now(self.clock)?,
            now(kind(USER_AND_SYSTEM))?,
            now(kind(USER))?,
        );
        let user = if ticks == 0 {
            all
        } else {
            let part = u128::from(all) * u128::from(user) / u128::from(ticks);
            u64::try_from(part).unwrap_or(all).min(all)
        };
        let system = (all - user).max(self.last.system_cpu_ns);
        let user = all.saturating_sub(system).max(self.last.user_cpu_ns);
        Ok([user, all.saturating_sub(user)])
    }

    /// Names of the threads so far, also of those that are gone.
    pub(crate) fn names(&self) -> &BTreeMap<u32, String> {
        &self.names
    }

    fn look_at_threads(&mut self) -> ProcResult<()> {
        for thread in self.process.tasks()?.flatten() {
            let Ok(status) = thread.status() else {
                continue;
            };
            let counts = [
                status.voluntary_ctxt_switches,
                status.nonvoluntary_ctxt_switches,
            ];
            self.switches
                .insert(thread.tid, counts.map(Option::unwrap_or_default));
            let tid = thread.tid.unsigned_abs();
            if self.names.len() < MAX_NAMES || self.names.contains_key(&tid) {
                self.names.insert(tid, status.name);
            }
        }
        Ok(())
    }

    /// The kernel tells them by thread: those of threads that have ended are what was
    /// last seen of them.
    fn switches(&self) -> [u64; 2] {
        let sum = |kind: usize| self.switches.values().map(|counts| counts[kind]).sum();
        [sum(0), sum(1)]
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, thread, time::Duration};

    use super::*;

    /// The shell's own account of a child that works and faults.
    #[test]
    fn a_childs_counters_are_those_that_it_was_charged() {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; read x",
            ])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let mut meter = Meter::of(child.id()).expect("it is ours");
        let stat = format!("/proc/{}/stat", child.id());
        let is_asleep = || {
            fs::read_to_string(&stat)
                .expect("it lives")
                .contains(") S ")
        };
        thread::sleep(Duration::from_millis(100));
        while !is_asleep() {
            thread::sleep(Duration::from_millis(10));
        }
        let told = meter.read(2_000_000_000).expect("it lives");
        drop(child.stdin.take());
        child.wait().expect("it is ours");
        let cpu_ns = told.user_cpu_ns + told.system_cpu_ns;
        assert!(cpu_ns > 20_000_000, "{told:?}");
        assert!(
            told.max_rss_bytes > 500_000 && told.minor_faults > 50,
            "{told:?}"
        );
        assert!(told.voluntary_context_switches > 0, "{told:?}");
        assert_eq!(told.ts_ns, 2_000_000_000);
        assert_eq!(meter.names()[&child.id()], "sh");
        assert!(meter.read(2_000_000_001).is_err(), "it is gone");
    }

    /// The same clocks as `getrusage`, within what passes between the two.
    #[test]
    fn our_own_time_is_what_getrusage_says() {
        let mut meter = Meter::of(std::process::id()).expect("it is ours");
        let told = meter.read(1).expect("we live");
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)
            .expect("it is ours");
        let ns = |time: nix::sys::time::TimeVal| time.num_nanoseconds().unsigned_abs();
        let whole = ns(usage.user_time()) + ns(usage.system_time());
        let ours = told.user_cpu_ns + told.system_cpu_ns;
        assert!(whole >= ours - 2_000, "{whole} and {ours}");
        assert!(told.max_rss_bytes >> 10 <= usage.max_rss().unsigned_abs());
        assert!(usage.minor_page_faults().unsigned_abs() >= told.minor_faults);
    }
}
