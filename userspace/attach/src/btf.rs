//! Offsets of kernel structure members, from the kernel's own type information.
//!
//! In: the bytes of /sys/kernel/btf/vmlinux. Out: byte offsets. Never: a guess
//! by kernel version. (aya-obj keeps its member lookup to itself; btf-rs is
//! LGPL.) Layout: include/uapi/linux/btf.h.

use std::{fs, io};

use crate::AttachError;
pub use block_io::IoOffsets;

mod block_io;

/// Where the running kernel describes its types.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_ENUM64: u32 = 19;

/// Offsets in `struct task_struct` that the kernel programs use, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskOffsets {
    /// `tgid`.
    pub tgid: u32,
    /// `pid`: the thread id.
    pub pid: u32,
    /// `mm`.
    pub mm: u32,
    /// `se.sum_exec_runtime`.
    pub cpu_ns: u32,
}

impl TaskOffsets {
    fn of(btf: &Btf<'_>) -> Option<Self> {
        Some(Self {
            tgid: btf.offset("task_struct", &["tgid"])?,
            pid: btf.offset("task_struct", &["pid"])?,
            mm: btf.offset("task_struct", &["mm"])?,
            cpu_ns: btf.offset("task_struct", &["se", "sum_exec_runtime"])?,
        })
    }
}

/// Offsets that the programs on exits and signals use, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeOffsets {
    /// `signal` in `struct task_struct`.
    pub signal: u32,
    /// `live` in `struct signal_struct`.
    pub live: u32,
    /// `group_exit_code` in `struct signal_struct`.
    pub status: u32,
    /// `sa.sa_handler` in `struct k_sigaction`.
    pub handler: u32,
    /// `si_code` in `struct kernel_siginfo`.
    pub code: u32,
    /// `_sifields._sigfault._addr` in `struct kernel_siginfo`.
    pub address: u32,
}

impl LifeOffsets {
    fn of(btf: &Btf<'_>) -> Option<Self> {
        let info = |path: &[&str]| btf.offset("kernel_siginfo", path);
        Some(Self {
            signal: btf.offset("task_struct", &["signal"])?,
            live: btf.offset("signal_struct", &["live"])?,
            status: btf.offset("signal_struct", &["group_exit_code"])?,
            handler: btf.offset("k_sigaction", &["sa", "sa_handler"])?,
            code: info(&["si_code"])?,
            address: info(&["_sifields", "_sigfault", "_addr"])?,
        })
    }
}

/// What the programs on intervals off the CPU use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedOffsets {
    /// `__state` in `struct task_struct`, or `state` (before 5.14), bytes.
    pub state: u32,
    /// `stack` in `struct task_struct`, bytes.
    pub stack: u32,
    /// `flags` in `struct task_struct`, bytes.
    pub flags: u32,
    /// `orig_ax` in `struct pt_regs`, bytes.
    pub orig_ax: u32,
    /// `ip` there.
    pub ip: u32,
    /// `sp` there.
    pub sp: u32,
    /// `bp` there.
    pub bp: u32,
    /// Whether `sched_switch` has the previous thread's state as its last argument.
    pub has_state: bool,
}

impl SchedOffsets {
    fn of(btf: &Btf<'_>) -> Option<Self> {
        let task = |member: &str| btf.offset("task_struct", &[member]);
        let register = |name: &str| btf.offset("pt_regs", &[name]);
        Some(Self {
            state: task("__state").or_else(|| task("state"))?,
            stack: task("stack")?,
            flags: task("flags")?,
            orig_ax: register("orig_ax")?,
            ip: register("ip")?,
            sp: register("sp")?,
            bp: register("bp")?,
            // preempt, prev, next, prev_state, and before them the tracepoint's own.
            has_state: btf.parameters("btf_trace_sched_switch")? >= 5,
        })
    }
}

/// Where the programs on listening sockets find members: the global that has the offset,
/// the structure, the path.
const NET_MEMBERS: [(&str, &str, &[&str]); 18] = [
    ("SOCK_STATE", "sock", &["__sk_common", "skc_state"]),
    ("SOCK_FAMILY", "sock", &["__sk_common", "skc_family"]),
    ("SOCK_PORT", "sock", &["__sk_common", "skc_num"]),
    ("SOCK_NET", "sock", &["__sk_common", "skc_net"]),
    ("SOCK_ADDRESS", "sock", &["__sk_common", "skc_rcv_saddr"]),
    (
        "SOCK_ADDRESS_V6",
        "sock",
        &["__sk_common", "skc_v6_rcv_saddr"],
    ),
    ("SOCK_PROTOCOL", "sock", &["sk_protocol"]),
    ("SOCK_DEPTH", "sock", &["sk_ack_backlog"]),
    ("SOCK_LIMIT", "sock", &["sk_max_ack_backlog"]),
    ("SOCK_DROPS", "sock", &["sk_drops"]),
    ("SOCK_GROUP", "sock", &["sk_reuseport_cb"]),
    ("SOCK_COOKIE", "sock", &["__sk_common", "skc_cookie"]),
    ("SOCK_DEVICE", "sock", &["__sk_common", "skc_bound_dev_if"]),
    ("SOCK_SOCKET", "sock", &["sk_socket"]),
    ("SOCKET_SOCK", "socket", &["sk"]),
    (
        "QUEUE_TAIL",
        "inet_connection_sock",
        &["icsk_accept_queue", "rskq_accept_tail"],
    ),
    ("REQUEST_SOCK", "request_sock", &["sk"]),
    ("NET_NUMBER", "net", &["ns", "inum"]),
];

/// What the programs on listening sockets use: globals and their values, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetOffsets(pub Vec<(&'static str, u32)>);

impl NetOffsets {
    /// The offsets, or the member that there is not.
    fn of(btf: &Btf<'_>) -> Result<Self, String> {
        let offset = |structure: &str, path: &[&str]| btf.offset_or(structure, path);
        let known = NET_MEMBERS
            .iter()
            .map(|(global, structure, path)| Ok((*global, offset(structure, path)?)));
        let mut known: Vec<_> = known.collect::<Result<_, String>>()?;
        let inode = offset("socket_alloc", &["vfs_inode", "i_ino"])?;
        let socket = offset("socket_alloc", &["socket"])?;
        known.push(("SOCKET_INODE", inode.wrapping_sub(socket)));
        Ok(Self(known))
    }
}

/// Offsets that programs need which a recording can go without, or why there are none.
#[derive(Debug)]
pub struct Offsets {
    /// What every recording needs.
    pub task: TaskOffsets,
    /// Exits and signals.
    pub life: Result<LifeOffsets, AttachError>,
    /// Intervals off the CPU.
    pub sched: Result<SchedOffsets, AttachError>,
    /// Listening sockets.
    pub net: Result<NetOffsets, AttachError>,
    /// Block I/O.
    pub io: Result<IoOffsets, AttachError>,
}

/// The running kernel's offsets.
///
/// # Errors
/// [`AttachError::Btf`] when the kernel has no BTF, or not the members of
/// [`TaskOffsets`], [`AttachError::Proc`] when it cannot be read for another reason.
pub fn of_running_kernel() -> Result<Offsets, AttachError> {
    let bytes = read_vmlinux()?;
    let lacking = |what: &str| AttachError::Btf {
        reason: format!("{what} lacks a member"),
    };
    let btf = Btf::parse(&bytes).ok_or_else(|| AttachError::Btf {
        reason: format!("{VMLINUX} is cut short"),
    })?;
    let task = TaskOffsets::of(&btf).ok_or_else(|| lacking("task_struct"))?;
    let life = LifeOffsets::of(&btf)
        .ok_or_else(|| lacking("signal_struct, k_sigaction or kernel_siginfo"));
    let sched =
        SchedOffsets::of(&btf).ok_or_else(|| lacking("task_struct, pt_regs or sched_switch"));
    let net = NetOffsets::of(&btf).map_err(|reason| AttachError::Btf { reason });
    let io = IoOffsets::of(&btf).map_err(|reason| AttachError::Btf { reason });
    Ok(Offsets {
        task,
        life,
        sched,
        net,
        io,
    })
}

/// A file that is not there or not for us is the kernel's doing; what else can
/// fail is not.
fn read_vmlinux() -> Result<Vec<u8>, AttachError> {
    fs::read(VMLINUX).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => AttachError::Btf {
            reason: format!("{VMLINUX}: {source}"),
        },
        _ => AttachError::Proc {
            path: VMLINUX.to_owned(),
            source,
        },
    })
}

/// One type's place in the type section.
struct Type {
    at: usize,
    kind: u32,
    members: usize,
    bit_fields: bool,
}

/// A parsed BTF blob; type ids start at 1.
struct Btf<'a> {
    types: Vec<Type>,
    type_bytes: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = usize::try_from(word(bytes, 4)?).ok()?;
        let section = |at: usize| -> Option<&'a [u8]> {
            let start = header.checked_add(usize::try_from(word(bytes, at)?).ok()?)?;
            let len = usize::try_from(word(bytes, at + 4)?).ok()?;
            bytes.get(start..start.checked_add(len)?)
        };
        let (type_bytes, strings) = (section(8)?, section(16)?);
        let mut types = Vec::new();
        let mut at = 0;
        while at < type_bytes.len() {
            let info = word(type_bytes, at + 4)?;
            let kind = info >> 24 & 0x1f;
            let members = (info & 0xffff) as usize;
            types.push(Type {
                at,
                kind,
                members,
                bit_fields: info >> 31 == 1,
            });
            at += 12 + trailer_bytes(kind, members);
        }
        Some(Self {
            types,
            type_bytes,
            strings,
        })
    }

    /// Offset of a member of a named structure, along a path of members.
    fn offset(&self, structure: &str, path: &[&str]) -> Option<u32> {
        let mut current = self.types.iter().find(|candidate| {
            candidate.kind == KIND_STRUCT && self.name(candidate.at) == Some(structure.as_bytes())
        })?;
        let mut offset = 0;
        for name in path {
            let (at, of) = self.member(current, name.as_bytes())?;
            offset += at;
            current = self.by_id(of)?;
        }
        Some(offset)
    }

    /// The same, or which member there is not.
    fn offset_or(&self, structure: &str, path: &[&str]) -> Result<u32, String> {
        let lacking = || format!("struct {structure} has no {}", path.join("."));
        self.offset(structure, path).ok_or_else(lacking)
    }

    /// Offset and type id of a member, also through anonymous members.
    fn member(&self, structure: &Type, name: &[u8]) -> Option<(u32, u32)> {
        if !matches!(structure.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        (0..structure.members).find_map(|index| {
            let at = structure.at + 12 + index * 12;
            let of = word(self.type_bytes, at + 4)?;
            let packed = word(self.type_bytes, at + 8)?;
            let bits = if structure.bit_fields {
                packed & 0x00ff_ffff
            } else {
                packed
            };
            let found = self.name(at)?;
            if found == name {
                return Some((bits / 8, of));
            }
            let inner = if found.is_empty() {
                self.by_id(of)?
            } else {
                return None;
            };
            self.member(inner, name)
                .map(|(inside, id)| (bits / 8 + inside, id))
        })
    }

    /// How many parameters the function has that a typedef names a pointer to.
    fn parameters(&self, typedef: &str) -> Option<usize> {
        let named = self.types.iter().find(|candidate| {
            candidate.kind == KIND_TYPEDEF && self.name(candidate.at) == Some(typedef.as_bytes())
        })?;
        let pointer = self.referred(named)?;
        let function = self.referred(pointer)?;
        let is_it = pointer.kind == KIND_PTR && function.kind == KIND_FUNC_PROTO;
        is_it.then_some(function.members)
    }

    /// The type that a typedef or pointer refers to.
    fn referred(&self, from: &Type) -> Option<&Type> {
        self.by_id(word(self.type_bytes, from.at + 8)?)
    }

    fn by_id(&self, id: u32) -> Option<&Type> {
        self.types.get((id as usize).checked_sub(1)?)
    }

    /// The name at the first word of a type or member.
    fn name(&self, at: usize) -> Option<&'a [u8]> {
        let start = word(self.type_bytes, at)? as usize;
        self.strings.get(start..)?.split(|byte| *byte == 0).next()
    }
}

/// Bytes that follow the common 12 of a type.
fn trailer_bytes(kind: u32, members: usize) -> usize {
    match kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => members * 12,
        KIND_ENUM | KIND_FUNC_PROTO => members * 8,
        _ => 0,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_the_offsets() {
        let offsets = of_running_kernel().expect("this kernel has BTF").task;
        assert_eq!(offsets.tgid, offsets.pid + 4, "pid and tgid are neighbours");
        assert!(
            offsets.cpu_ns > 0 && offsets.cpu_ns.is_multiple_of(8),
            "{offsets:?}"
        );
    }

    /// `si_code` and `si_addr` are where user programs see them
    /// (include/uapi/asm-generic/siginfo.h, x86-64).
    #[test]
    fn a_signal_is_laid_out_as_users_see_it() {
        let offsets = of_running_kernel().expect("this kernel has BTF");
        let offsets = offsets.life.expect("it has the members");
        assert_eq!((offsets.code, offsets.address), (8, 16), "{offsets:?}");
        assert!(
            offsets.signal > 0 && offsets.status > offsets.live,
            "{offsets:?}"
        );
    }

    /// (arch/x86/include/asm/ptrace.h; the fourth argument came with 5.18.)
    #[test]
    fn a_switch_has_a_state_and_a_system_call_its_number() {
        let offsets = of_running_kernel().expect("this kernel has BTF");
        let offsets = offsets.sched.expect("it has the members");
        assert_eq!((offsets.orig_ax, offsets.has_state), (120, true));
        assert!(offsets.stack > 0 && offsets.stack.is_multiple_of(8));
    }

    /// `skc_num` and `skc_family` are where user programs of old saw them
    /// (include/net/sock.h, `struct sock_common`).
    #[test]
    fn a_socket_has_a_port_and_a_queue() {
        let offsets = of_running_kernel().expect("this kernel has BTF");
        let NetOffsets(offsets) = offsets.net.expect("it has the members");
        let of = |global| {
            let found = offsets.iter().find(|(name, _)| *name == global);
            found.expect("it is listed").1
        };
        assert_eq!((of("SOCK_PORT"), of("SOCK_FAMILY")), (14, 16));
        assert_eq!(of("SOCK_LIMIT"), of("SOCK_DEPTH") + 4, "neighbours");
        assert_eq!(of("SOCKET_INODE") % 8, 0);
    }

    #[test]
    fn truncated_type_information_is_refused() {
        let bytes = fs::read(VMLINUX).expect("this kernel has BTF");
        for len in [0, 3, 12, 24, 100, bytes.len() / 2] {
            let btf = Btf::parse(&bytes[..len]);
            let task = btf.as_ref().and_then(TaskOffsets::of);
            let life = btf.as_ref().and_then(LifeOffsets::of);
            let sched = btf.as_ref().and_then(SchedOffsets::of);
            assert_eq!((task, life, sched), (None, None, None), "{len} bytes");
            assert!(btf.is_none_or(|btf| NetOffsets::of(&btf).is_err()));
        }
    }
}
