//! A program that is started to be traced.
//!
//! In: a command line. Out: a process of it that is loaded, with its libraries, and
//! has not executed an instruction of its own program; then one that runs. Never: one
//! that stays held: dropped, it is killed before it has begun.
//!
//! It is held by ptrace, at the address that the kernel gives as the program's entry
//! (`AT_ENTRY`, `fs/binfmt_elf.c`): where the dynamic linker jumps to when it is done.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child, Command, ExitStatus},
};

use nix::{
    errno::Errno,
    sys::{
        ptrace::{self, AddressType},
        signal::Signal,
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Key of the entry's address in the auxiliary vector (include/uapi/linux/auxvec.h).
const AT_ENTRY: u64 = 9;
/// The instruction that stops a program, one byte.
const INT3: u8 = 0xcc;

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    /// It cannot be executed.
    #[error("cannot run {}", program.display())]
    Run {
        /// The program.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// It cannot be held before its first instruction.
    #[error("cannot hold {} at its start", program.display())]
    Hold {
        /// The program.
        program: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// It was gone before that.
    #[error("{} ended before its first instruction", program.display())]
    Ended {
        /// The program.
        program: OsString,
    },
}

/// A program on its way.
#[derive(Debug)]
pub(crate) struct Launched {
    child: Child,
    is_held: bool,
}

impl Launched {
    /// Starts a program and holds it at its entry.
    ///
    /// # Errors
    /// [`LaunchError`]; nothing of it runs then.
    pub(crate) fn hold(command: &[OsString]) -> Result<Self, LaunchError> {
        let (program, arguments) = command.split_first().map_or_else(
            || (OsString::new(), &[][..]),
            |(program, arguments)| (program.clone(), arguments),
        );
        let run = |source| LaunchError::Run {
            program: program.clone(),
            source,
        };
        let child = spawn(&program, arguments).map_err(run)?;
        let launched = Self {
            child,
            is_held: true,
        };
        match launched.run_to_entry() {
            Ok(true) => Ok(launched),
            Ok(false) => Err(LaunchError::Ended { program }),
            Err(source) => Err(LaunchError::Hold { program, source }),
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it go.
    ///
    /// # Errors
    /// The system's, such as when it has been killed meanwhile.
    pub(crate) fn release(&mut self) -> io::Result<()> {
        self.is_held = false;
        Ok(ptrace::detach(self.raw(), None)?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    fn raw(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// False when it has ended on the way.
    fn run_to_entry(&self) -> io::Result<bool> {
        let pid = self.raw();
        // The stop that exec is to a traced process.
        if !stops_by_trap(pid)? {
            return Ok(false);
        }
        let entry = entry(self.pid())?;
        let address = usize::try_from(entry).map_err(io::Error::other)? as AddressType;
        let code = ptrace::read(pid, address)?;
        let mut trapped = code.to_le_bytes();
        trapped[0] = INT3;
        ptrace::write(pid, address, i64::from_le_bytes(trapped))?;
        ptrace::cont(pid, None)?;
        if !stops_by_trap(pid)? {
            return Ok(false);
        }
        ptrace::write(pid, address, code)?;
        let mut registers = ptrace::getregs(pid)?;
        if registers.rip != entry + 1 {
            return Err(io::Error::other("it stopped elsewhere"));
        }
        registers.rip = entry;
        ptrace::setregs(pid, registers)?;
        Ok(true)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        if self.is_held {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a process that ended makes of an exit code: the shell's, for a signal.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[expect(unsafe_code, reason = "the child asks to be traced, after the fork")]
fn spawn(program: &OsStr, arguments: &[OsString]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: one system call, which is safe after a fork.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    command.spawn()
}

/// Waits for a stop by SIGTRAP, and delivers what comes before; false when it ends.
fn stops_by_trap(pid: Pid) -> io::Result<bool> {
    loop {
        match waitpid(pid, None) {
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => return Ok(true),
            Ok(WaitStatus::Stopped(_, signal)) => ptrace::cont(pid, signal)?,
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return Ok(false),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The address of a process's first own instruction.
fn entry(pid: u32) -> io::Result<u64> {
    let vector = fs::read(format!("/proc/{pid}/auxv"))?;
    let (words, _) = vector.as_chunks::<8>();
    let mut pairs = words
        .chunks_exact(2)
        .map(|pair| (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1])));
    let found = pairs.find(|(key, _)| *key == AT_ENTRY);
    found
        .map(|(_, entry)| entry)
        .ok_or_else(|| io::Error::other("the kernel names no entry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_program_is_held_with_its_libraries_and_then_runs() {
        let mut held = Launched::hold(&command(&["sh", "-c", "exit 7"])).expect("it is there");
        let maps = fs::read_to_string(format!("/proc/{}/maps", held.pid())).expect("it is held");
        assert!(maps.contains("libc.so"), "{maps}");
        let entry = entry(held.pid()).expect("it has one");
        let registers = ptrace::getregs(held.raw()).expect("it is held");
        assert_eq!(registers.rip, entry);
        held.release().expect("it is held");
        assert_eq!(code_of(held.wait().expect("it ends")), 7);
    }

    #[test]
    fn one_that_is_not_released_has_done_nothing() {
        let scratch = tempfile::tempdir().expect("there is room");
        let file = scratch.path().join("made");
        let touch = command(&["touch", file.to_str().expect("text")]);
        drop(Launched::hold(&touch).expect("it is there"));
        assert!(!file.exists());
    }

    #[test]
    fn a_program_that_is_not_there() {
        let error = Launched::hold(&command(&["/no/such/program"])).expect_err("it is not there");
        assert_eq!(error.to_string(), "cannot run /no/such/program");
    }

    #[test]
    fn a_signal_is_told_as_a_shell_does() {
        let mut held = Launched::hold(&command(&["sleep", "1000"])).expect("it is there");
        held.release().expect("it is held");
        held.child.kill().expect("it runs");
        assert_eq!(code_of(held.wait().expect("it ends")), 128 + 9);
    }
}
