//! What was typed.
//!
//! In: the command line. Out: checked values. Never: an effect.

use std::{
    ffi::OsString,
    num::{NonZeroU32, NonZeroU64},
    path::PathBuf,
    time::Duration,
};

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};
use dial9_bpf_attach::QueueReads;
use dial9_bpf_ship::{convert::Encoding, courier::Compression, sink::Destination};
use dial9_bpf_symbolize::DebugInfo;
use dial9_bpf_trace::{metadata, rotate::Policy, segment::Keep};

use crate::flight;

/// Smallest ring there is, on the one architecture we trace.
const PAGE_BYTES: u64 = 4096;

/// Smallest segment of a capture: what it says of itself has room, and some batches.
const LEAST_CAPTURE_BYTES: u64 = 128 << 10;

const EXIT_CODES: &str = "\
Exit codes:
  0  done (also when the target exits, the duration is over, or on Ctrl-C)
  1  a failure of our own: output not writable or another recorder's, disk full,
     too few descriptors, internal
  2  usage, or a --debug-file that is not the program's
  3  a privilege is missing
  4  the kernel or its policy refuses
  5  no such target: never there, gone before attach ended, a kernel thread, not
     to be run
  6  nothing to trace in it: not Tokio, not optimized, not x86-64, not sound, too
     large
  7  done, but records were lost; what a capture leaves out to keep its size is no loss
The first that applies from 1 to 6, else 7, else 0.
`run`: where that is 0, the exit code of the program, or 128 and its signal.
`check` and `convert`: 0, or 1 on any problem; `dump` also 3.
`report`: 0 (also where there was nothing to record), 1, 6 where the subject was
not recorded or refused, 7.";

/// Traces unmodified, running Tokio processes into dial9 segments.
#[derive(Debug, Parser)]
#[command(name = "dial9-bpf", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record a running process until it exits, the duration is over, or Ctrl-C.
    Attach(AttachArgs),
    /// Start a program and record it from its first instruction to its end.
    Run(RunArgs),
    /// Record declared probes alone, for a while and into a segment of bounded size.
    Capture(CaptureArgs),
    /// Decode segments: schemas, counts, time range, metadata, problems.
    Check(CheckArgs),
    /// Compress segments, or decompress them.
    Convert(ConvertArgs),
    /// Name functions for a recorder.
    #[command(hide = true)]
    Symbolize,
    /// Have the last seconds written by a recorder that runs with --on-demand.
    Dump(DumpArgs),
    /// What segments say of one subject, in tables.
    Report(ReportArgs),
}

/// `dial9-bpf attach`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct AttachArgs {
    /// The process to record.
    #[arg(long, value_name = "N")]
    pub(crate) pid: NonZeroU32,
    /// How.
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Print what would be attached and what it would cost; attach nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `dial9-bpf run`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct RunArgs {
    /// How.
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// The program and its arguments.
    #[arg(value_name = "CMD", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// How a process is recorded.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordArgs {
    /// Directory for the segments; made if absent.
    #[arg(long, value_name = "DIR", default_value = "dial9-traces")]
    pub(crate) output: PathBuf,
    /// How long to record, such as 10s, 500ms or 2m; without it, until the
    /// target exits or Ctrl-C.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Begin a new segment at every multiple of this on the wall clock, whole
    /// seconds; or `off`: then a recording is one segment unless it is large, and
    /// it ends when the output cannot be written.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = parse_rotation,
        overrides_with = "rotate"
    )]
    pub(crate) rotate: Rotation,
    /// Begin a new segment when one has this size, uncompressed.
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_size)]
    pub(crate) max_segment_bytes: NonZeroU64,
    /// Size of all segments in the directory, beyond which the oldest go.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = parse_size)]
    pub(crate) spool_bytes: NonZeroU64,
    /// How segments are compressed: dial9 reads gzip only, zstd is smaller.
    #[arg(long, value_name = "NAME", default_value = "gzip")]
    pub(crate) compression: CompressionName,
    /// Put segments there and remove them here: `s3://BUCKET/PREFIX` or
    /// `file:///DIR`. Without it, to `DIAL9_S3_BUCKET` and `DIAL9_S3_PREFIX`, if set.
    #[arg(long, value_name = "URL")]
    pub(crate) upload: Option<Destination>,
    /// Upload at most so many bytes a second in the mean.
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) upload_rate: Option<NonZeroU64>,
    /// Name of the service; without it, `DIAL9_SERVICE_NAME`, or the name of the
    /// target's container, unit or executable.
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
    /// What tells instances of the service apart; without it, the host's name.
    #[arg(long, value_name = "NAME")]
    pub(crate) instance: Option<String>,
    /// Memory for the rings of all CPUs together, at most: each is a power of
    /// two, up to 2 GiB.
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = parse_bytes)]
    pub(crate) ring_bytes: u64,
    /// Let the kernel go on with hits when this recorder is killed, as long as the
    /// rings have room; the next one with this option records them.
    #[arg(long)]
    pub(crate) keep_rings: bool,
    /// Write nothing until it is asked for, then the last seconds: by `dial9-bpf
    /// dump`, by SIGUSR1, by the target's panic or crash. TIME is how much is kept in
    /// memory, 30s unless it is given.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        default_missing_value = "30s",
        value_parser = parse_window,
        conflicts_with_all = ["keep_rings", "rotate", "max_segment_bytes"]
    )]
    pub(crate) on_demand: Option<Duration>,
    /// Memory for what is kept, at most.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "64MiB",
        value_parser = parse_window_bytes,
        requires = "on_demand"
    )]
    pub(crate) on_demand_bytes: u64,
    /// Write the last seconds also when a poll of a task has taken so long.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "on_demand")]
    pub(crate) on_demand_poll: Option<Duration>,
    /// Record what the target forks as well, each process by a recorder of its own
    /// into DIR/fork-PID, at most N at a time, 16 unless it is given.
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "16",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub(crate) follow_forks: Option<u16>,
    /// Record this process, which the target has forked, for the recorder of that.
    #[arg(long, value_name = "N", hide = true)]
    pub(crate) forked: Option<NonZeroU32>,
    /// What to record, separated by commas.
    #[arg(
        long,
        value_name = "NAMES",
        value_enum,
        value_delimiter = ',',
        default_value = "tokio,sched,cpu,res,net"
    )]
    pub(crate) signals: Vec<Signal>,
    /// How often a thread is sampled in a second of its CPU time.
    #[arg(
        long,
        value_name = "N",
        default_value = "99",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub(crate) cpu_hz: u32,
    /// Where the depth of a worker's own queue is read, for Tokio 1.30 to 1.54; at polls as
    /// well it is one more read of the target's memory each.
    #[arg(long, value_name = "WHERE", default_value = "parks")]
    pub(crate) local_queue: LocalQueue,
    /// The file with the program's symbols and debug information, where they were
    /// taken out of it; without it, what gdb would find for its build id or its debug
    /// link, in the target's root and in ours.
    #[arg(long, value_name = "PATH")]
    pub(crate) debug_file: Option<PathBuf>,
    /// Names of functions also from debug information, with inlined functions and source
    /// lines, where there is any; or from symbol tables only.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) debug_info: DebugInfoName,
    /// Also record the probes that this file declares, *.uprobes; several times
    /// for several files.
    #[arg(long, value_name = "FILE", conflicts_with = "keep_rings")]
    pub(crate) probes: Vec<PathBuf>,
    /// Do not record when a declared probe, or a part of one, is nowhere.
    #[arg(long, requires = "probes")]
    pub(crate) strict: bool,
    /// Leave out sites whose instruction the kernel cannot emulate: a hit there
    /// costs about 20 times as much.
    #[arg(long)]
    pub(crate) no_single_step: bool,
}

impl RecordArgs {
    /// Whether something is wanted that comes with callchains.
    pub(crate) fn has_callchains(&self) -> bool {
        self.wants(Signal::Cpu)
    }

    /// Whether a signal is wanted.
    pub(crate) fn wants(&self, signal: Signal) -> bool {
        self.signals.contains(&signal)
    }

    /// Samples per second of a thread's CPU time, where they are wanted.
    pub(crate) fn profile_hz(&self) -> Option<u32> {
        self.wants(Signal::Cpu).then_some(self.cpu_hz)
    }
}

/// Where the depth of a worker's own queue is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LocalQueue {
    /// At parks and at their ends
    Parks,
    /// At each poll as well: dial9's viewer shows it then
    Polls,
}

impl From<LocalQueue> for QueueReads {
    fn from(local_queue: LocalQueue) -> Self {
        match local_queue {
            LocalQueue::Parks => Self::AtParks,
            LocalQueue::Polls => Self::AtPolls,
        }
    }
}

/// A kind of thing that is recorded, each by hooks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Signal {
    /// Tasks and workers: polls, wakes, spawns, ends, parks, panics
    Tokio,
    /// Threads off their CPUs: why, how long, who woke them
    Sched,
    /// Where threads are: stacks at ticks of their CPU time, and where they wait in polls
    Cpu,
    /// What the process has used: CPU, memory, faults, switches
    Res,
    /// Listening TCP sockets: how many connections wait to be accepted
    Net,
    /// Block devices: each read and write, how long it took, who waits for it
    Io,
}

impl Signal {
    /// Its name on the command line and in the metadata.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tokio => metadata::TOKIO,
            Self::Sched => "sched",
            Self::Cpu => "cpu",
            Self::Res => "res",
            Self::Net => "net",
            Self::Io => "io",
        }
    }
}

/// When segments end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    /// With the epochs of this length.
    Epochs(Duration),
    /// With the recording.
    Off,
}

/// `dial9-bpf capture`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CaptureArgs {
    /// The process.
    #[arg(long, value_name = "N")]
    pub(crate) pid: NonZeroU32,
    /// The file that declares the probes, *.uprobes; several times for several.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) probes: Vec<PathBuf>,
    /// For how long, in seconds; less where the target ends, or on Ctrl-C.
    #[arg(long, value_name = "N", default_value = "30", value_parser = parse_seconds)]
    pub(crate) seconds: Duration,
    /// Size of the segment, uncompressed and with all that is in it, at most; at least
    /// 128KiB.
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = parse_budget)]
    pub(crate) max_bytes: u64,
    /// What goes when that is not enough: with `oldest` the capture ends there.
    #[arg(long, value_name = "WHICH", default_value = "newest")]
    pub(crate) keep: KeepName,
    /// Which hits count besides what the file says, such as 'tenant == 7': of the probes
    /// that have these values.
    #[arg(long = "where", value_name = "FILTER")]
    pub(crate) filter: Option<String>,
    /// The file to write, which takes the place of one that is there; `-`: stdout.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Memory for the rings of all CPUs together, at most.
    #[arg(long, value_name = "BYTES", default_value = "32MiB", value_parser = parse_bytes)]
    pub(crate) ring_bytes: u64,
    /// The file with the program's symbols, where they were taken out of it.
    #[arg(long, value_name = "PATH")]
    pub(crate) debug_file: Option<PathBuf>,
    /// Do not record when a probe, or a part of one, is nowhere.
    #[arg(long)]
    pub(crate) strict: bool,
}

/// [`Keep`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeepName {
    /// The oldest goes, in whole batches
    Newest,
    /// The capture ends
    Oldest,
}

impl From<KeepName> for Keep {
    fn from(name: KeepName) -> Self {
        match name {
            KeepName::Newest => Self::Newest,
            KeepName::Oldest => Self::Oldest,
        }
    }
}

/// `dial9-bpf check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Segments: .bin, .bin.gz, or .bin.active.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// `dial9-bpf convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// How the segments are to be compressed: dial9 reads gzip and none.
    #[arg(long, value_name = "NAME")]
    pub(crate) to: EncodingName,
    /// Segments: .bin, .bin.gz or .bin.zst. Each is replaced by the new file.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// `dial9-bpf dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// The recorder's output directory.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// How long to wait until the segments are there.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

/// `dial9-bpf report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The subject.
    #[command(subcommand)]
    pub(crate) subject: Subject,
}

/// What a report is about.
#[derive(Debug, Subcommand)]
pub(crate) enum Subject {
    /// Block I/O: sizes, latencies, order, depth, syncs. Needs segments that were
    /// recorded with the signal `io`.
    Io(ReportIoArgs),
    /// Declared probes: which keys they had, how often, and which came again.
    Keys(ReportKeysArgs),
}

/// `dial9-bpf report keys`.
#[derive(Debug, Args)]
pub(crate) struct ReportKeysArgs {
    /// Only this event; without it, all of declared probes.
    #[arg(long, value_name = "NAME")]
    pub(crate) event: Option<String>,
    /// The field that is the key; without it, the first with bytes or a text, or else with
    /// a number.
    #[arg(long, value_name = "NAME")]
    pub(crate) field: Option<String>,
    /// Count apart by the values of this field.
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// How many keys are listed of each.
    #[arg(long, value_name = "N", default_value = "20")]
    pub(crate) top: usize,
    /// Segments in the order of time: .bin, .bin.gz, or .bin.active.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// `dial9-bpf report io`.
#[derive(Debug, Args)]
pub(crate) struct ReportIoArgs {
    /// Also write a job file for fio that makes the same mix of I/O; `-`: print that
    /// instead, and the report to stderr.
    #[arg(long, value_name = "PATH")]
    pub(crate) fio: Option<PathBuf>,
    /// Segments: .bin, .bin.gz, or .bin.active.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// [`Compression`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressionName {
    Gzip,
    Zstd,
}

impl From<CompressionName> for Compression {
    fn from(name: CompressionName) -> Self {
        match name {
            CompressionName::Gzip => Self::Gzip,
            CompressionName::Zstd => Self::Zstd,
        }
    }
}

/// [`DebugInfo`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DebugInfoName {
    Auto,
    Never,
}

impl From<DebugInfoName> for DebugInfo {
    fn from(name: DebugInfoName) -> Self {
        match name {
            DebugInfoName::Auto => Self::Auto,
            DebugInfoName::Never => Self::Never,
        }
    }
}

/// [`Encoding`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EncodingName {
    Gzip,
    Zstd,
    None,
}

impl From<EncodingName> for Encoding {
    fn from(name: EncodingName) -> Self {
        match name {
            EncodingName::Gzip => Self::Gzip,
            EncodingName::Zstd => Self::Zstd,
            EncodingName::None => Self::Raw,
        }
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("it is zero".to_owned());
    }
    Ok(duration)
}

fn parse_rotation(text: &str) -> Result<Rotation, String> {
    if text == "off" {
        return Ok(Rotation::Off);
    }
    let epoch = parse_duration(text)?;
    Policy::new(epoch, u64::MAX).map_err(|error| error.to_string())?;
    Ok(Rotation::Epochs(epoch))
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = parse_duration(text)?;
    if window < Duration::from_secs(1) {
        return Err("it is under a second".to_owned());
    }
    Ok(window)
}

fn parse_window_bytes(text: &str) -> Result<u64, String> {
    let ByteSize(bytes) = text.parse()?;
    if bytes < flight::LEAST_BYTES {
        return Err(format!("it is under {}", ByteSize(flight::LEAST_BYTES)));
    }
    Ok(bytes)
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: u64 = text.parse().map_err(|error| format!("{error}"))?;
    if seconds == 0 {
        return Err("it is zero".to_owned());
    }
    Ok(Duration::from_secs(seconds))
}

fn parse_budget(text: &str) -> Result<u64, String> {
    let ByteSize(bytes) = text.parse()?;
    if bytes < LEAST_CAPTURE_BYTES {
        return Err(format!("it is under {}", ByteSize(LEAST_CAPTURE_BYTES)));
    }
    Ok(bytes)
}

fn parse_size(text: &str) -> Result<NonZeroU64, String> {
    let ByteSize(bytes) = text.parse()?;
    NonZeroU64::new(bytes).ok_or_else(|| "it is zero".to_owned())
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let ByteSize(bytes) = text.parse()?;
    if bytes < PAGE_BYTES {
        return Err(format!("every CPU needs a page of {PAGE_BYTES} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_that_cannot_be_are_usage_errors() {
        for (option, bad) in [
            ("--pid", "0"),
            ("--pid", "-1"),
            ("--pid", "4294967296"),
            ("--duration", "0"),
            ("--duration", "0s"),
            ("--duration", "soon"),
            ("--rotate", "0s"),
            ("--rotate", "1500ms"),
            ("--max-segment-bytes", "0"),
            ("--spool-bytes", "0"),
            ("--compression", "none"),
            ("--upload", "ftp://host/x"),
            ("--upload", "s3://"),
            ("--upload-rate", "0"),
            ("--ring-bytes", "0"),
            ("--ring-bytes", "1"),
            ("--ring-bytes", "4095"),
            ("--ring-bytes", "many"),
            ("--follow-forks", "0"),
            ("--follow-forks", "1025"),
            ("--on-demand", "999ms"),
            ("--on-demand-bytes", "8388607"),
            ("--on-demand-poll", "0s"),
            ("--signals", "all"),
            ("--signals", "tokio,gpu"),
        ] {
            let pid = if option == "--pid" {
                &[][..]
            } else {
                &["--pid", "1"]
            };
            let line = [&["dial9-bpf", "attach"], pid, &[option, bad]].concat();
            let error = Cli::try_parse_from(line).expect_err(bad);
            assert_eq!(error.exit_code(), i32::from(crate::exit::USAGE), "{bad}");
            let named = bad.rsplit(',').next().expect("there is one");
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let cli = Cli::try_parse_from(["dial9-bpf", "attach", "--pid", "42"]).expect("enough");
        let Command::Attach(args) = cli.command else {
            panic!("attach")
        };
        assert_eq!(args.pid.get(), 42);
        let args = args.record;
        assert_eq!(args.output, PathBuf::from("dial9-traces"));
        assert_eq!(args.ring_bytes, dial9_bpf_abi::limits::DEFAULT_RING_BYTES);
        assert_eq!(args.duration, None);
        let minute = Duration::from_mins(1);
        assert_eq!(args.rotate, Rotation::Epochs(minute));
        assert_eq!(args.compression, CompressionName::Gzip);
        let budget = dial9_bpf_trace::spool::DEFAULT_BUDGET_BYTES;
        assert_eq!(args.spool_bytes.get(), budget);
        assert_eq!(args.on_demand, None);
        let all = [
            Signal::Tokio,
            Signal::Sched,
            Signal::Cpu,
            Signal::Res,
            Signal::Net,
        ];
        assert_eq!(args.signals, all);
        assert_eq!(args.profile_hz(), Some(99));
    }

    #[test]
    fn on_demand_has_a_window_of_its_own_and_goes_without_what_it_replaces() {
        let parse = |options: &[&str]| {
            let line = [&["dial9-bpf", "attach", "--pid", "1"], options].concat();
            Cli::try_parse_from(line).map(|cli| match cli.command {
                Command::Attach(args) => (args.record.on_demand, args.record.on_demand_bytes),
                _ => panic!("attach"),
            })
        };
        let window = |seconds| (Some(Duration::from_secs(seconds)), 64 << 20);
        assert_eq!(parse(&["--on-demand"]).expect("enough"), window(30));
        assert_eq!(parse(&["--on-demand", "5s"]).expect("enough"), window(5));
        for options in [
            ["--on-demand", "--keep-rings"].as_slice(),
            &["--on-demand", "--rotate", "1s"],
            &["--on-demand", "--max-segment-bytes", "1MiB"],
            &["--on-demand-poll", "1s"],
            &["--on-demand-bytes", "64MiB"],
        ] {
            parse(options).expect_err("they do not go together");
        }
    }
}
