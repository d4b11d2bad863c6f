//! Block I/O: every read, write and sync of the target, and of nobody else.
//!
//! In: fio, which counts its own. Out: the same counts, bytes and sizes; a job file that
//! makes the same mix again. Never: another process's I/O.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use dial9_bpf_integration::{
    Attach,
    block_io::{DiskFile, FioRun, IoFacts, Logged, not_done, run},
    output_dir, require_root,
    segment::{AwayFacts, sealed_segments},
};

/// Size of the files.
const FILE_BYTES: u64 = 8 << 20;
/// Directions, as fio numbers them.
const NAMES: [&str; 2] = ["I/O: read", "I/O: write"];

/// Runs fio on a file of its own.
fn recorded(dir: &Path, options: &[&str]) -> (DiskFile, FioRun) {
    require_root();
    let file = DiskFile::new(dir.join("file"), FILE_BYTES);
    let named = format!("--filename={}", file.path.display());
    let logging = FioRun::logging(dir);
    let size = format!("--size={FILE_BYTES}");
    let mut arguments = vec!["--name=job", "--thread", &named, &size];
    arguments.extend(logging.iter().map(String::as_str));
    arguments.extend(options);
    let run = FioRun::record(dir, &arguments);
    (file, run)
}

fn sizes(ios: &[&IoFacts], name: &str) -> BTreeMap<u64, u64> {
    let mut sizes = BTreeMap::new();
    for io in ios.iter().filter(|io| io.name == name) {
        *sizes.entry(io.bytes).or_default() += 1;
    }
    sizes
}

/// Direct I/O: counts, bytes and each size are fio's.
fn expect_all(options: &[&str]) -> (DiskFile, FioRun) {
    let dir = output_dir();
    let (file, run) = recorded(dir.path(), &[&["--direct=1"], options].concat());
    let ios = file.ios(&run.facts);
    // The end of an I/O that was not seen is a loss: nothing else is missing.
    let mut missing = 0;
    for (direction, name) in NAMES.into_iter().enumerate() {
        let sizes = sizes(&ios, name);
        for (size, made) in &run.sizes[direction] {
            let seen = sizes.get(size).copied().unwrap_or(0);
            assert!(
                seen <= *made,
                "{options:?} {name} {size}: {seen}, not {made}"
            );
            missing += made - seen;
        }
        let made = |of: &BTreeMap<u64, u64>| of.iter().map(|(size, of)| size * of).sum::<u64>();
        let told = &run.told[direction];
        let logged = &run.sizes[direction];
        assert_eq!(
            (logged.values().sum(), made(logged)),
            (told.count, told.bytes)
        );
        assert!(
            sizes.keys().all(|size| logged.contains_key(size)),
            "{options:?} {name}"
        );
    }
    let accounted = run.facts.lost_of("io-end") + not_done(&run.outcome);
    assert!(
        missing <= accounted,
        "{options:?}: {missing}, not {accounted}"
    );
    assert!(missing * 10 <= ios.len() as u64, "{options:?}: {missing}");
    for io in &ios {
        let took = io.times[1] - io.times[0];
        assert!(io.queue_ns.is_some_and(|queue| queue <= took), "{io:?}");
        assert_eq!((io.worker, io.task), (None, None), "{io:?}");
    }
    (file, run)
}

#[test]
fn direct_io_by_system_calls() {
    let (file, run) = expect_all(&["--ioengine=psync", "--rw=randread", "--bs=4k"]);
    assert_eq!(run.told[0].count, FILE_BYTES / 4096);
    // One at a time, so that none begins before the one before it is done.
    let ios = file.ios(&run.facts);
    let mut times: Vec<[u64; 2]> = ios.iter().map(|io| io.times).collect();
    times.sort_unstable();
    assert!(times.windows(2).all(|two| two[0][1] <= two[1][0]));
}

#[test]
fn direct_io_of_several_sizes_by_aio() {
    let mix = ["--rw=randrw", "--bssplit=4k/50:16k/30:64k/20", "--fsync=64"];
    let (file, run) = expect_all(&[&mix[..], &["--ioengine=libaio", "--iodepth=8"]].concat());
    assert!(
        run.sizes.iter().all(|sizes| sizes.len() > 2),
        "{:?}",
        run.sizes
    );
    assert!(run.syncs > 0);
    assert_eq!(run.facts.syncs.len() as u64, run.syncs);
    let ios = file.ios(&run.facts);
    let follows = |two: &[&IoFacts]| two[1].times[0] < two[0].times[1];
    assert!(ios.windows(2).any(follows), "several at a time");
}

/// Neighbours become one request, and stay what they were.
#[test]
fn direct_io_by_io_uring() {
    let sequential = [
        "--ioengine=io_uring",
        "--rw=write",
        "--bs=4k",
        "--iodepth=16",
    ];
    expect_all(&[&sequential[..], &["--iodepth_batch_submit=16"]].concat());
}

/// The kernel's thread that submits for the target is the target's.
#[test]
fn direct_io_by_a_polling_thread_of_the_kernel() {
    let options = ["--ioengine=io_uring", "--sqthread_poll=1", "--rw=randwrite"];
    expect_all(&[&options[..], &["--bs=16k", "--iodepth=4"]].concat());
}

/// What is written into the page cache reaches the disk by `fsync`, in the target, or
/// later by a thread of the kernel, in nobody.
#[test]
fn cached_writes_and_their_syncs() {
    let dir = output_dir();
    let options = ["--direct=0", "--ioengine=psync", "--rw=write", "--bs=16k"];
    let (file, run) = recorded(dir.path(), &[&options[..], &["--fdatasync=64"]].concat());
    assert_eq!(run.told[1].bytes, FILE_BYTES);
    let ios = file.ios(&run.facts);
    let bytes = ios.iter().map(|io| io.bytes).sum::<u64>();
    // Nobody syncs the last of them.
    assert!((1..FILE_BYTES).contains(&bytes), "{bytes}");
    assert!((ios.len() as u64) < run.told[1].count, "{}", ios.len());
    // fio does not count them; the last writes have none.
    assert_eq!(run.facts.syncs.len() as u64, run.told[1].count / 64 - 1);
    let inode = std::os::unix::fs::MetadataExt::ino(&file.path.metadata().expect("it is there"));
    for sync in &run.facts.syncs {
        assert_eq!((sync.name.as_str(), sync.inode), ("fdatasync", inode));
        // It waits for what it submits, a flush of the disk at least.
        let is_within = |io: &IoFacts| {
            io.tid == sync.tid && io.times[0] >= sync.times[0] && io.times[1] <= sync.times[1]
        };
        assert!(run.facts.ios.iter().any(is_within), "{sync:?}");
    }
}

#[test]
fn another_process_is_not_recorded() {
    let dir = output_dir();
    let other = DiskFile::new(dir.path().join("other"), FILE_BYTES);
    let mut reader = Command::new("sh")
        .args([
            "-c",
            "while dd if=\"$0\" of=/dev/null bs=4k iflag=direct; do :; done",
        ])
        .arg(&other.path)
        .stderr(Stdio::null())
        .spawn()
        .expect("there is a shell");
    let (file, run) = recorded(dir.path(), &["--direct=1", "--rw=randread", "--bs=4k"]);
    reader.kill().expect("it runs");
    reader.wait().expect("it is ours");
    let accounted = run.facts.lost_of("io-end") + not_done(&run.outcome);
    let seen = file.ios(&run.facts).len() as u64;
    assert!(
        (seen..=seen + accounted).contains(&run.told[0].count),
        "{seen}, {accounted}"
    );
    assert_eq!(other.ios(&run.facts), Vec::<&IoFacts>::new());
}

/// Each size's part of the I/O in one direction.
fn shares(sizes: &BTreeMap<u64, u64>) -> BTreeMap<u64, f64> {
    #[expect(clippy::cast_precision_loss, reason = "a share of counts")]
    let share = |count: u64| count as f64 / sizes.values().sum::<u64>() as f64;
    sizes
        .iter()
        .map(|(size, count)| (*size, share(*count)))
        .collect()
}

#[test]
fn the_job_file_makes_the_same_mix() {
    let dir = output_dir();
    let mix = [
        "--rw=randrw",
        "--rwmixread=70",
        "--bssplit=4k/60:16k/40,8k/80:32k/20",
    ];
    let options = [
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=4",
        "--norandommap=1",
    ];
    let (_, first) = recorded(dir.path(), &[&mix[..], &options].concat());
    let job = dir.path().join("job.fio");
    let report = Attach::command(&["report", "io", "--fio"])
        .arg(&job)
        .arg(&sealed_segments(&dir.path().join("traces"))[0])
        .outcome();
    assert!(matches!(report.code, Some(0 | 7)), "{report:#?}");
    assert!(report.stdout.contains("latency"), "{report:#?}");
    let again = dir.path().join("again");
    fs::create_dir(&again).expect("it is ours");
    // fio makes the files that are not there, which is not to be recorded.
    let at = |options: &[&str]| {
        let mut arguments = vec![format!("--directory={}", again.display())];
        arguments.extend(options.iter().map(|of| (*of).to_owned()));
        arguments.push(job.display().to_string());
        arguments
    };
    run(Command::new("fio").args(at(&["--thread", "--create_only=1"])));
    let mut arguments = at(&["--thread"]);
    // Options behind a job file are none.
    let file = arguments.pop().expect("the job");
    arguments.push(file);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let second = FioRun::record(&again, &arguments);
    for direction in [0, 1] {
        let name = NAMES[direction];
        let ios: Vec<&IoFacts> = second
            .facts
            .ios
            .iter()
            .filter(|io| !io.is_metadata)
            .collect();
        let [before, after] = [&first.sizes[direction], &sizes(&ios, name)].map(shares);
        for (size, share) in &before {
            let now = after.get(size).copied().unwrap_or(0.0);
            assert!(
                (now - share).abs() < 0.05,
                "{name} {size}: {share}, now {now}"
            );
        }
        let mixed = |run: &FioRun| {
            let [reads, writes] = [run.told[0].count, run.told[1].count];
            100 * reads / (reads + writes)
        };
        assert!(mixed(&first).abs_diff(mixed(&second)) < 5);
    }
}

/// Files without the signal are no files without I/O.
#[test]
fn a_report_of_what_was_not_recorded() {
    require_root();
    let dir = output_dir();
    let traces = dir.path().join("traces");
    let attach = Attach::command(&["run", "--signals", "res", "--output"]).arg(&traces);
    attach.arg("--").arg("true").outcome().expect(0);
    let report = Attach::command(&["report", "io"]).arg(&sealed_segments(&traces)[0]);
    let outcome = report.outcome();
    outcome.expect(6);
    let said = outcome.stderr.join("\n");
    assert!(said.contains("recorded without the signal io"), "{said}");
    let report = Attach::command(&["report", "io", "/dev/null"]).outcome();
    report.expect(1);
    // A trace by its first bytes; what it was recorded with, nobody knows.
    let garbage = dir.path().join("garbage.bin");
    fs::write(&garbage, b"TRC\0garbage").expect("there is room");
    let report = Attach::command(&["report", "io"]).arg(&garbage).outcome();
    report.expect_failure(1, &["before anything says what was recorded"]);
}

/// An I/O of a thread that was away when it was done, ns.
struct Waited {
    /// By the device.
    device: u64,
    /// Until the thread was on a CPU again.
    resumed: u64,
    /// By fio.
    fio: u64,
    /// Whether nothing else took the CPU from the thread right before or after.
    is_undisturbed: bool,
}

/// How the thread was away when its I/O was done.
fn away_at_end<'a>(run: &'a FioRun, io: &IoFacts) -> Option<&'a AwayFacts> {
    let is_it = |away: &&AwayFacts| {
        away.tid == io.tid && (away.times[0]..=away.times[1]).contains(&io.times[1])
    };
    run.facts.away.iter().find(is_it)
}

fn waited(file: &DiskFile, run: &FioRun) -> Vec<Waited> {
    let mut ios = file.ios(&run.facts);
    ios.sort_unstable_by_key(|io| io.times[0]);
    let logged: BTreeMap<u64, &Logged> = run.logged.iter().map(|of| (of.offset, of)).collect();
    let waited = |(at, io): (usize, &&IoFacts)| {
        let away = away_at_end(run, io)?;
        let logged = logged.get(&(io.place - file.place[0]))?;
        let before = at.checked_sub(1).map_or(0, |before| ios[before].times[1]);
        let after = ios.get(at + 1).map_or(u64::MAX, |io| io.times[0]);
        let disturbs = |of: &AwayFacts| {
            of.name.contains("preempted") && of.times[0] < after && of.times[1] > before
        };
        Some(Waited {
            device: io.times[1] - io.times[0],
            resumed: away.times[1] - io.times[0],
            fio: logged.latency_ns,
            is_undisturbed: !run.facts.away.iter().any(disturbs),
        })
    };
    ios.iter().enumerate().filter_map(waited).collect()
}

/// Reads at random, one at a time, with the scheduler's signal.
fn reads_waited_for(size: &str, file_bytes: u64) -> Vec<Waited> {
    let dir = output_dir();
    let file = DiskFile::new(dir.path().join("file"), file_bytes);
    let mut arguments = [
        "--name=job --thread --ioengine=psync --rw=randread --direct=1",
        // The clock of the trace.
        "--clocksource=clock_gettime",
        &format!("--filename={} --bs={size}", file.path.display()),
    ]
    .join(" ");
    for option in FioRun::logging(dir.path()) {
        arguments = format!("{arguments} {option}");
    }
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let run = FioRun::record_signals(dir.path(), "io,sched", &arguments);
    let waited = waited(&file, &run);
    assert!(waited.len() * 2 > run.logged.len(), "{}", waited.len());
    let segment = &sealed_segments(&dir.path().join("traces"))[0];
    let report = Attach::command(&["report", "io"]).arg(segment).outcome();
    let reads = run.facts.ios.iter().filter(|io| io.name == NAMES[0]);
    let count = reads.filter(|io| away_at_end(&run, io).is_some()).count();
    assert_eq!(told_waits(&report.stdout), count as u64, "{report:#?}");
    waited
}

/// For how many reads a thread waited, as a report has it.
fn told_waits(report: &str) -> u64 {
    let table = report.split_once("was on a CPU again");
    let (_, table) = table.expect("it has the table");
    let row = table.lines().find(|line| line.contains(" read "));
    let count = row.and_then(|row| row.split_whitespace().nth(2));
    let count = count.expect("there were reads").replace(',', "");
    count.parse().expect("a number")
}

/// Median and 99 % of what is told of I/O without disturbance.
fn quantiles(waited: &[Waited], of: fn(&Waited) -> u64) -> [u64; 2] {
    let undisturbed = waited.iter().filter(|of| of.is_undisturbed);
    let mut values: Vec<u64> = undisturbed.map(of).collect();
    values.sort_unstable();
    [50, 99].map(|percent| values[(values.len() - 1) * percent / 100])
}

/// A system call has the I/O in it and goes on when its thread runs again: what the trace
/// has of it is never longer.
#[test]
fn a_thread_waits_no_longer_than_fio_says() {
    require_root();
    let waited = reads_waited_for("4k", FILE_BYTES);
    for of in &waited {
        let times = [of.device, of.resumed, of.fio];
        assert!(times.is_sorted(), "{times:?}");
    }
    // That of the device is not all of it.
    let [device, resumed, fio] = [
        quantiles(&waited, |of| of.device),
        quantiles(&waited, |of| of.resumed),
        quantiles(&waited, |of| of.fio),
    ];
    println!("p50, p99: {device:?} {resumed:?} {fio:?} ns");
    assert!((0..2).all(|at| device[at] < resumed[at] && resumed[at] < fio[at]));
}

/// Where the system call itself is a small part of it, the two are the same. Another
/// program may have the CPU just in that part.
#[test]
fn a_thread_waits_as_long_as_fio_says() {
    require_root();
    let agree = || {
        let waited = reads_waited_for("256k", 8 * FILE_BYTES);
        let ours = quantiles(&waited, |of| of.resumed);
        let fio = quantiles(&waited, |of| of.fio);
        println!("p50, p99: {ours:?} {fio:?} ns");
        let is_near = |(ours, fio): (u64, u64)| fio.abs_diff(ours) * 10 <= fio;
        ours.into_iter().zip(fio).all(is_near)
    };
    assert!((0..3).any(|_| agree()));
}
