//! Every map, and the globals that the loader sets but those of `sock`.

use aya_ebpf::{
    btf_maps::{ArrayOfMaps, RingBuf},
    macros::{btf_map, map},
    maps::{Array, HashMap, PerCpuArray, RingBuf as PlainRingBuf},
};
use dial9_bpf_abi::{
    block_io::{InFlight, KERNEL_IO_COUNTS, MAX_IN_FLIGHT, MAX_SYNCING, Syncing},
    declared::{DeclaredScratch, Definition, OpenCalls},
    fork::{FORK_COUNTS, MAX_FORKED},
    limits::{KNOWN_TASKS, MAX_CPUS, NO_TARGET},
    listener::{Listener, ListenerKey, MAX_LISTENERS, PORTS},
    loss::COUNTERS,
    stack::{Pace, Scratch},
    thread::{Away, LostHits, OnCpu, Polling, Queued, SLOTS},
};

/// Size that the inner maps are declared with, bytes; the loader puts rings of
/// the size it was asked for.
const DECLARED_RING_BYTES: usize = 4096;

/// A CPU's.
pub type Ring = RingBuf<u8, DECLARED_RING_BYTES>;

/// One ring for each online CPU, set by the loader; the index is the CPU.
#[btf_map]
pub static RINGS: ArrayOfMaps<Ring, { MAX_CPUS as usize }> = ArrayOfMaps::new();

/// The target's thread on each CPU.
#[map]
pub static ON_CPU: Array<OnCpu> = Array::with_max_entries(MAX_CPUS, 0);

/// Threads of the target that are off their CPUs, by `thread::slot_index`.
#[map]
pub static AWAY: Array<Away> = Array::with_max_entries(SLOTS, 0);

/// Polls of the target's threads, by `thread::slot_index`.
#[map]
pub static POLLING: Array<Polling> = Array::with_max_entries(SLOTS, 0);

/// Queues of the workers that are on the target's threads, by `thread::slot_index`.
#[map]
pub static QUEUED: Array<Queued> = Array::with_max_entries(SLOTS, 0);

/// Offset of the queue's address in a worker's core, bytes; 0 where that is
/// not known.
#[map]
pub static RUN_QUEUE: Array<u64> = Array::with_max_entries(1, 0);

/// The ring of stacks, of all CPUs; the loader sets its size.
#[map]
pub static STACKS: PlainRingBuf = PlainRingBuf::with_byte_size(DECLARED_RING_BYTES as u32, 0);

/// Where stacks are put together, by CPU; the loader sets how many there are.
#[map]
pub static SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// What a CPU may take of the stacks of threads that leave it.
#[map]
pub static PACE: PerCpuArray<Pace> = PerCpuArray::with_max_entries(1, 0);

/// What threads lost, by `thread::slot_index`.
#[map]
pub static LOST_HITS: Array<LostHits> = Array::with_max_entries(SLOTS, 0);

/// Which task a header is, at `known::index`.
#[map]
pub static KNOWN: Array<u64> = Array::with_max_entries(KNOWN_TASKS, 0);

/// Lost hits by CPU, at `loss::counter_index`.
#[map]
pub static LOSSES: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// 1 once the target has executed another program.
#[map]
pub static EXECUTED: Array<u32> = Array::with_max_entries(1, 0);

/// When a process was forked that is still a copy of the target, by its id.
#[map]
pub static FORKED: HashMap<u32, u64> = HashMap::with_max_entries(MAX_FORKED, 0);

/// Forks, by `fork::ForkCount`.
#[map]
pub static FORKS: Array<u64> = Array::with_max_entries(FORK_COUNTS, 0);

/// The target's listening sockets.
#[map]
pub static LISTENERS: HashMap<ListenerKey, Listener> = HashMap::with_max_entries(MAX_LISTENERS, 0);

/// Their keys, by the addresses of their `struct sock`.
#[map]
pub static KEYS: HashMap<u64, ListenerKey> = HashMap::with_max_entries(MAX_LISTENERS, 0);

/// How many listeners there have been at a port, at `listener::port_index`: never less
/// than the number of indexes that are in use.
#[map]
pub static LISTENED: Array<u64> = Array::with_max_entries(PORTS, 0);

/// I/O of the target that is under way, by the addresses of their `struct bio`.
#[map]
pub static IN_FLIGHT: HashMap<u64, InFlight> = HashMap::with_max_entries(MAX_IN_FLIGHT, 0);

/// The target's threads that wait for a file to be synced, by tid.
#[map]
pub static SYNCING: HashMap<u32, Syncing> = HashMap::with_max_entries(MAX_SYNCING, 0);

/// I/O of the kernel's own threads, by `block_io::KernelIoCount`.
#[map]
pub static KERNEL_IO: PerCpuArray<u64> = PerCpuArray::with_max_entries(KERNEL_IO_COUNTS, 0);

/// What declared probes read, and of which hits; set by the loader, and how many.
#[map]
pub static DEFINITIONS: Array<Definition> = Array::with_max_entries(1, 0);

/// Where the values of their hits are put together, by CPU; the loader sets how many.
#[map]
pub static DECLARED_SCRATCH: Array<DeclaredScratch> = Array::with_max_entries(1, 0);

/// Hits of the target at declared probes, whatever their filters say, by definition; as many.
#[map]
pub static DECLARED_HITS: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Calls that threads have open, by `thread::slot_index`; the loader sets how many.
#[map]
pub static OPEN_CALLS: Array<OpenCalls> = Array::with_max_entries(1, 0);

/// The process whose hits count, or `NO_TARGET`; alone in `.data`, where the
/// loader sets it, so that all programs begin and end at one moment. They also
/// end when the target executes another program.
#[unsafe(no_mangle)]
static mut TARGET: u32 = NO_TARGET;
/// 1 once a hit was lost; alone in `.bss`.
#[unsafe(no_mangle)]
static mut HAS_LOST: u32 = 0;

/// 1 when the programs are loaded sleepable and may fault a user page in.
#[unsafe(no_mangle)]
static SLEEPABLE: u32 = 0;
/// The traced process for the scheduler's tracepoints, which run for all.
#[unsafe(no_mangle)]
static SCHED_TGID: u32 = 0;
/// 1 when intervals off the CPU are recorded.
#[unsafe(no_mangle)]
static SCHED_RECORDS: u32 = 0;
/// 1 when the stacks of threads that leave their CPUs inside polls are recorded.
#[unsafe(no_mangle)]
static OFF_CPU_STACKS: u32 = 0;
/// 1 when the depth of the worker's queue is read at each poll.
#[unsafe(no_mangle)]
static POLL_QUEUES: u32 = 0;
/// Offset of `ip` in `struct pt_regs`, bytes.
#[unsafe(no_mangle)]
static REGS_IP: u32 = 0;
/// Offset of `sp` in `struct pt_regs`, bytes.
#[unsafe(no_mangle)]
static REGS_SP: u32 = 0;
/// Offset of `bp` in `struct pt_regs`, bytes.
#[unsafe(no_mangle)]
static REGS_BP: u32 = 0;
/// 1 when `sched_switch` has the previous thread's state as its fourth argument.
#[unsafe(no_mangle)]
static SCHED_HAS_STATE: u32 = 0;
/// Offset of `__state` in `struct task_struct`, bytes; of `state` before 5.14.
#[unsafe(no_mangle)]
static TASK_STATE: u32 = 0;
/// Offset of `stack` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_STACK: u32 = 0;
/// Offset of `flags` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_FLAGS: u32 = 0;
/// Offset of `orig_ax` in `struct pt_regs`, bytes.
#[unsafe(no_mangle)]
static REGS_ORIG_AX: u32 = 0;
/// Offset of `tgid` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_TGID: u32 = 0;
/// Offset of `pid` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_PID: u32 = 0;
/// Offset of `mm` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_MM: u32 = 0;
/// Offset of `se.sum_exec_runtime` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_CPU_NS: u32 = 0;
/// Offset of `signal` in `struct task_struct`, bytes.
#[unsafe(no_mangle)]
static TASK_SIGNAL: u32 = 0;
/// Offset of `live` in `struct signal_struct`, bytes.
#[unsafe(no_mangle)]
static SIGNAL_LIVE: u32 = 0;
/// Offset of `group_exit_code` in `struct signal_struct`, bytes.
#[unsafe(no_mangle)]
static SIGNAL_STATUS: u32 = 0;
/// Offset of `sa.sa_handler` in `struct k_sigaction`, bytes.
#[unsafe(no_mangle)]
static ACTION_HANDLER: u32 = 0;
/// Offset of `si_code` in `struct kernel_siginfo`, bytes.
#[unsafe(no_mangle)]
static INFO_CODE: u32 = 0;
/// Offset of `_sifields._sigfault._addr` in `struct kernel_siginfo`, bytes.
#[unsafe(no_mangle)]
static INFO_ADDRESS: u32 = 0;

/// Reads a global that the loader may have set: the compiler must not fold it,
/// the verifier (frozen `.rodata`) does.
#[inline(always)]
pub fn global(value: &'static u32) -> u32 {
    // SAFETY: a reference is valid to read.
    unsafe { core::ptr::read_volatile(value) }
}

#[inline(always)]
pub fn target() -> u32 {
    // SAFETY: an aligned word that is written whole.
    unsafe { core::ptr::read_volatile(&raw const TARGET) }
}

/// Ends the hits: the target has executed another program. Said before done, so
/// that a loader that begins the hits meanwhile can see it.
#[inline(always)]
pub fn end_hits() {
    if let Some(executed) = EXECUTED.get_ptr_mut(0) {
        // SAFETY: a map value, an aligned word that only ever becomes 1.
        unsafe { core::ptr::write_volatile(executed, 1) };
    }
    // SAFETY: an aligned word that is written whole.
    unsafe { core::ptr::write_volatile(&raw mut TARGET, NO_TARGET) }
}

#[inline(always)]
pub fn has_lost() -> bool {
    // SAFETY: an aligned word that only ever becomes 1.
    unsafe { core::ptr::read_volatile(&raw const HAS_LOST) == 1 }
}

#[inline(always)]
pub fn note_lost() {
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(&raw mut HAS_LOST, 1) }
}

#[inline(always)]
pub fn is_sleepable() -> bool {
    global(&SLEEPABLE) == 1
}

#[inline(always)]
pub fn sched_tgid() -> u32 {
    global(&SCHED_TGID)
}

#[inline(always)]
pub fn records_sched() -> bool {
    global(&SCHED_RECORDS) == 1
}

#[inline(always)]
pub fn records_off_cpu_stacks() -> bool {
    global(&OFF_CPU_STACKS) == 1
}

#[inline(always)]
pub fn reads_queues_at_polls() -> bool {
    global(&POLL_QUEUES) == 1
}

#[inline(always)]
pub fn regs_ip_offset() -> usize {
    global(&REGS_IP) as usize
}

#[inline(always)]
pub fn regs_sp_offset() -> usize {
    global(&REGS_SP) as usize
}

#[inline(always)]
pub fn regs_bp_offset() -> usize {
    global(&REGS_BP) as usize
}

#[inline(always)]
pub fn sched_has_state() -> bool {
    global(&SCHED_HAS_STATE) == 1
}

#[inline(always)]
pub fn task_state_offset() -> usize {
    global(&TASK_STATE) as usize
}

#[inline(always)]
pub fn task_stack_offset() -> usize {
    global(&TASK_STACK) as usize
}

#[inline(always)]
pub fn task_flags_offset() -> usize {
    global(&TASK_FLAGS) as usize
}

#[inline(always)]
pub fn regs_orig_ax_offset() -> usize {
    global(&REGS_ORIG_AX) as usize
}

#[inline(always)]
pub fn task_tgid_offset() -> usize {
    global(&TASK_TGID) as usize
}

#[inline(always)]
pub fn task_pid_offset() -> usize {
    global(&TASK_PID) as usize
}

#[inline(always)]
pub fn task_mm_offset() -> usize {
    global(&TASK_MM) as usize
}

#[inline(always)]
pub fn task_cpu_ns_offset() -> usize {
    global(&TASK_CPU_NS) as usize
}

#[inline(always)]
pub fn task_signal_offset() -> usize {
    global(&TASK_SIGNAL) as usize
}

#[inline(always)]
pub fn signal_live_offset() -> usize {
    global(&SIGNAL_LIVE) as usize
}

#[inline(always)]
pub fn signal_status_offset() -> usize {
    global(&SIGNAL_STATUS) as usize
}

#[inline(always)]
pub fn action_handler_offset() -> usize {
    global(&ACTION_HANDLER) as usize
}

#[inline(always)]
pub fn info_code_offset() -> usize {
    global(&INFO_CODE) as usize
}

#[inline(always)]
pub fn info_address_offset() -> usize {
    global(&INFO_ADDRESS) as usize
}
