//! What a hit costs on this machine, measured when asked.
//!
//! In: nothing but ourselves: three functions of a few instructions in our own
//! executable, probed by the very programs that the target gets. Out: ns a hit
//! by instruction class. Never: a figure from another machine.

use std::{fs, io};

use dial9_bpf_abi::cookie::Cookie;
use dial9_bpf_probes::plan::{Binary, InstructionClass, Plan, Probe, Site};
use rustix::time::{ClockId, clock_gettime};

use crate::{Abilities, AttachError, Object, Options, Target, Tracer, mapped::Mapping};

/// Rounds of which the median is taken.
const ROUNDS: usize = 7;
/// Hits in a round at an emulated instruction.
const HITS: u32 = 4_000;
/// Hits in a round at a single-stepped one, which is some 20 times dearer.
const STEPPED_HITS: u32 = 400;
/// Room for one round's records and more, bytes on each CPU.
const RING_BYTES: u64 = 4 << 20;

std::arch::global_asm!(
    ".pushsection .text.dial9_price, \"ax\", @progbits",
    ".balign 16",
    "dial9_price_nop: nop; ret",
    ".balign 16",
    "dial9_price_push: push rax; pop rax; ret",
    ".balign 16",
    "dial9_price_step: mov eax, edi; ret",
    ".popsection",
);

unsafe extern "C" {
    fn dial9_price_nop(header: *const u64);
    fn dial9_price_push(header: *const u64);
    fn dial9_price_step(header: *const u64);
}

type Probed = unsafe extern "C" fn(*const u64);

/// A task as the programs see it: state 0, and an id, in a cell aligned as
/// Tokio's.
#[repr(align(128))]
struct Cell([u64; 16]);

static TASK: Cell = Cell([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
/// Offset of the id in it, bytes.
const ID_OFFSET: u16 = 40;

/// What a hit adds to the thread that makes it, ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// A record at a `nop` or a jump.
    pub emulated_ns: f64,
    /// A record at a `push` or a call.
    pub emulated_stack_ns: f64,
    /// A record at any other instruction.
    pub single_stepped_ns: f64,
    /// Finding the id of a task that is known, where a record has one.
    pub known_task_ns: f64,
    /// Reading 8 bytes of the target's memory.
    pub user_read_ns: f64,
}

impl Prices {
    /// Measures; takes about 0.2 s.
    ///
    /// # Errors
    /// As [`Tracer::load`] and [`Tracer::attach`].
    pub fn measure(abilities: Abilities) -> Result<Self, AttachError> {
        use InstructionClass::{Emulated, EmulatedStack, SingleStepped};
        let target = Target::open(std::process::id())?;
        let options = Options::bare(RING_BYTES, abilities);
        let mut tracer = Tracer::load(&target, options)?;
        let mut price = |trial| hit_ns(&mut tracer, &target, &trial);
        let end = Trial {
            probe: Probe::PollEnd,
            class: Emulated,
            function: dial9_price_nop,
            hits: HITS,
            remembers: false,
        };
        let emulated_ns = price(end)?;
        let start = Trial {
            probe: Probe::PollStart,
            ..end
        };
        let unknown_ns = price(start)?;
        let stack = Trial {
            class: EmulatedStack,
            function: dial9_price_push,
            ..end
        };
        let stepped = Trial {
            class: SingleStepped,
            function: dial9_price_step,
            hits: STEPPED_HITS,
            ..end
        };
        let emulated_stack_ns = price(stack)?;
        let single_stepped_ns = price(stepped)?;
        // Last, for an attachment after it would have to clear what it remembers.
        let known_ns = price(Trial {
            remembers: true,
            ..start
        })?;
        Ok(Self {
            emulated_ns,
            emulated_stack_ns,
            single_stepped_ns,
            known_task_ns: (known_ns - emulated_ns).max(0.0),
            user_read_ns: (unknown_ns - emulated_ns).max(0.0),
        })
    }

    /// What a hit of `probe` at an instruction of `class` adds, ns, for a task
    /// that has been seen before.
    pub fn hit_ns(&self, probe: Probe, class: InstructionClass) -> f64 {
        let record = match class {
            InstructionClass::Emulated => self.emulated_ns,
            InstructionClass::EmulatedStack => self.emulated_stack_ns,
            InstructionClass::SingleStepped => self.single_stepped_ns,
        };
        record
            + match probe {
                Probe::PollEnd
                | Probe::Park
                | Probe::Unpark
                | Probe::BlockOn
                | Probe::BlockOnEnd => 0.0,
                // The location, or the exception and its payload; and a short text.
                Probe::Panic => 5.0 * self.user_read_ns,
                Probe::PanicMessage => 9.0 * self.user_read_ns,
                Probe::PollStart | Probe::Wake | Probe::Terminate => self.known_task_ns,
                // The id, the state and the vtable of a new task.
                Probe::Spawn => 3.0 * self.user_read_ns,
            }
    }
}

#[derive(Clone, Copy)]
struct Trial {
    probe: Probe,
    class: InstructionClass,
    function: Probed,
    hits: u32,
    remembers: bool,
}

/// Median over the rounds of what probing adds to a call, ns.
fn hit_ns(tracer: &mut Tracer, target: &Target, trial: &Trial) -> Result<f64, AttachError> {
    let object = Object::of_executable(target, one_site(trial)?)?;
    let mut added = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        added.push(-call_ns(trial));
    }
    tracer.attach(target, std::slice::from_ref(&object))?;
    for added in &mut added {
        *added += call_ns(trial);
        tracer.rings().drain(usize::MAX, |_, _| ());
    }
    tracer.detach();
    added.sort_by(f64::total_cmp);
    Ok(added[ROUNDS / 2])
}

/// CPU time of one call, ns.
fn call_ns(trial: &Trial) -> f64 {
    let start_ns = thread_cpu_ns();
    for _ in 0..trial.hits {
        // SAFETY: the functions above touch nothing but scratch registers and
        // their own stack slot.
        unsafe { (trial.function)(TASK.0.as_ptr()) }
    }
    (thread_cpu_ns() - start_ns) / f64::from(trial.hits)
}

/// CPU time of this thread, ns.
#[expect(
    clippy::cast_precision_loss,
    reason = "exact to 2^53 ns, a hundred days"
)]
fn thread_cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec) as f64
}

fn one_site(trial: &Trial) -> Result<Plan, AttachError> {
    let address = trial.function as usize as u64;
    let site = Site {
        probe: trial.probe,
        binary: Binary::Scanned,
        file_offset: own_file_offset(address)?,
        address,
        class: trial.class,
        instruction: String::new(),
        cookie: Cookie {
            id_offset: ID_OFFSET,
            remembers: trial.remembers,
            ..Cookie::EMPTY
        },
        function: None,
        scheduler: None,
    };
    Ok(Plan {
        sites: vec![site],
        vtables: Vec::new(),
        misses: Vec::new(),
        tokio_version: None,
        build_id: None,
        has_symbols: false,
        untyped: None,
    })
}

/// Offset of one of our own instructions in our executable, bytes.
fn own_file_offset(address: u64) -> Result<u64, AttachError> {
    let path = "/proc/self/maps";
    let failed = |source| AttachError::Proc {
        path: path.to_owned(),
        source,
    };
    let maps = fs::read_to_string(path).map_err(failed)?;
    maps.lines()
        .filter_map(Mapping::parse)
        .find(|(mapping, _)| (mapping.start..mapping.end).contains(&address))
        .map(|(mapping, _)| address - mapping.start + mapping.offset)
        .ok_or_else(|| failed(io::Error::other(format!("no mapping at {address:#x}"))))
}
