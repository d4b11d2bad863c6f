//! `xtask viewer`: that dial9's own viewer can use what we upload.
//!
//! In: nothing. Out: a table of what the viewer says of a recording of the bundled
//! server, and of what we count in it; an error where the two differ. Never: a
//! stand-in; the viewer, its pages in a browser and the S3 server are somebody
//! else's. They, the server and its load end with the verb.
//!
//! The viewer takes 15 minutes to build, so this is no part of `xtask test`,
//! which has the viewer's scripts read segments (`integration/src/viewer.rs`).

mod api;
mod browser;
mod segment;
mod store;
mod table;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use self::api::Viewer;
use self::browser::{Browser, Counters};
use self::segment::{Counts, Segment};
use self::store::{BUCKET, Store};
use self::table::Table;
use crate::demo::{self, Server};
use crate::setup::{self, Scope};
use crate::shell;

/// Whether the result is to be kept.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the table into integration/VIEWER.md
    #[arg(long)]
    save: bool,
}

const DURATION: &str = "10s";
const EPOCH: &str = "2s";
/// Fewer segments would not be what was asked for.
const FEWEST: usize = 5;
/// The viewer's aggregates.
const AGGREGATES: [&str; 3] = ["tokio-stats", "flamegraph", "span-stats"];

/// What a recording has put into the store.
struct Upload {
    prefix: &'static str,
    service: &'static str,
    instance: &'static str,
    /// Wall-clock time of the recording, seconds, and a minute around.
    range_s: [u64; 2],
}

/// The verb.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !shell::is_root() {
        bail!("viewer attaches to a program of its own, which needs root");
    }
    setup::ensure(Scope::Viewer)?;
    demo::build()?;
    let folder = shell::root().join("target/viewer/run");
    shell::empty(&folder)?;

    let store = Store::start(&folder)?;
    let upload = record(&folder, &store)?;
    let segments = segments(&folder, &store)?;
    let viewer = Viewer::start(&folder, &store, &upload)?;
    let mut browser = Browser::start(&folder)?;
    let mut table = Table::default();
    let compared = compare_objects(&mut table, &viewer, &upload, &segments)
        .and_then(|()| compare_aggregates(&mut table, &viewer, &upload, &segments))
        .and_then(|()| compare_pages(&mut table, &viewer, &mut browser, &segments));
    println!("\n{table}");
    compared.and_then(|()| table.verdict())?;
    if args.save {
        save(&table, &browser.version()?)?;
    }
    Ok(())
}

/// Records the demo server under load.
fn record(folder: &Path, store: &Store) -> Result<Upload> {
    let server = Server::under_load()?;
    let begin_s = now_s()?;
    let [prefix, service, instance] = ["traces", "demo", "first"];
    let spool = folder.join("spool");
    let mut attach = Command::new(shell::tracer());
    attach
        .envs(store.environment())
        .args(["attach", "--pid", &server.pid])
        .args(["--duration", DURATION, "--rotate", EPOCH])
        .args(["--upload", &format!("s3://{BUCKET}/{prefix}")])
        .args(["--service", service, "--instance", instance, "--output"])
        .arg(&spool);
    println!("viewer: {attach:?}");
    shell::run(&mut attach)?;
    for entry in fs::read_dir(&spool)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        ensure!(!name.contains(".bin"), "{name} was not uploaded");
    }
    Ok(Upload {
        prefix,
        service,
        instance,
        range_s: [begin_s - 60, now_s()? + 60],
    })
}

fn now_s() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

/// Every segment that is in the store, in the order of the recording.
fn segments(folder: &Path, store: &Store) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for key in store.keys()? {
        let index = index(&key).with_context(|| format!("no index in {key}"))?;
        let content = store.object(&key)?;
        let path = folder.join(format!("{index}.bin.gz"));
        fs::write(&path, &content)?;
        let counts = Counts::of(&path)?;
        let segment = Segment {
            key,
            content,
            counts,
        };
        segments.push((index, segment));
    }
    segments.sort_by_key(|(index, _)| *index);
    let indices: Vec<_> = segments.iter().map(|(index, _)| *index).collect();
    ensure!(
        indices.len() >= FEWEST && (0..).zip(&indices).all(|(at, index)| at == *index),
        "the store has segments {indices:?}"
    );
    Ok(segments.into_iter().map(|(_, segment)| segment).collect())
}

/// `…/SECONDS-INDEX.bin.gz`.
fn index(key: &str) -> Option<u64> {
    let (_, index) = key.strip_suffix(".bin.gz")?.rsplit_once('-')?;
    index.parse().ok()
}

fn compare_objects(
    table: &mut Table,
    viewer: &Viewer<'_>,
    upload: &Upload,
    segments: &[Segment],
) -> Result<()> {
    let keys: Vec<_> = segments.iter().map(|segment| segment.key.clone()).collect();
    table.add("services", viewer.services()?.join(", "), upload.service);
    table.add_names("objects of the service", &viewer.keys()?, &keys);
    let mut same = 0;
    for Segment { key, content, .. } in segments {
        same += usize::from(viewer.object(key)? == *content);
    }
    table.add("objects opened, byte for byte", same, keys.len());
    Ok(())
}

fn compare_aggregates(
    table: &mut Table,
    viewer: &Viewer<'_>,
    upload: &Upload,
    segments: &[Segment],
) -> Result<()> {
    let files = segments.len();
    for name in AGGREGATES {
        let aggregate = viewer.aggregate(name, files)?;
        let coverage = &aggregate["coverage"];
        let why = coverage["fold_error_sample"].as_str();
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        table.add(
            format!("aggregate {name}"),
            format!(
                "{} of {} files, fold_errors {}{why}",
                coverage["files_folded"], coverage["files_matched"], coverage["fold_errors"]
            ),
            format!("{files} of {files} files, fold_errors 0"),
        );
        if name == "tokio-stats" {
            compare_workers(table, &aggregate, upload, &Counts::sum(segments))?;
        }
    }
    Ok(())
}

fn compare_workers(
    table: &mut Table,
    aggregate: &Value,
    upload: &Upload,
    ours: &Counts,
) -> Result<()> {
    let workers = aggregate["worker_activity"].as_array();
    let workers = workers.context("no worker_activity")?;
    let instances: BTreeSet<_> = workers
        .iter()
        .filter_map(|worker| worker["host"].as_str())
        .collect();
    let instances: Vec<_> = instances.into_iter().collect();
    table.add("instances", instances.join(", "), upload.instance);
    table.add(
        "polls with a proven end",
        &aggregate["total_polls"],
        ours.polls,
    );
    table.add("workers that poll", workers.len(), ours.polling.len());
    Ok(())
}

/// The page of each segment, and of all together.
fn compare_pages(
    table: &mut Table,
    viewer: &Viewer<'_>,
    browser: &mut Browser,
    segments: &[Segment],
) -> Result<()> {
    let mut pages: Vec<_> = segments.chunks(1).collect();
    pages.push(segments);
    for (at, page) in pages.iter().enumerate() {
        let name = match page {
            [_] => format!("page of segment {at}"),
            _ => "page of all segments".to_owned(),
        };
        println!("viewer: {name}");
        let shown = browser.counters(&viewer.page(page))?;
        let ours = Counts::sum(page);
        let ours = Counters {
            events: ours.events,
            workers: ours.parking.len() as u64,
            tasks: ours.tasks.len() as u64,
        };
        table.add(name, shown, ours);
    }
    Ok(())
}

fn save(table: &Table, browser: &str) -> Result<()> {
    let kernel = shell::kernel()?;
    let text = format!(
        "# What dial9's viewer says of our uploads

`cargo xtask viewer --save`, as root, {kernel}, {browser}, dial9-viewer 0.5.7: the
bundled server under load, recorded for {DURATION} in epochs of {EPOCH} and uploaded to an S3 server, moto's. The
viewer runs in S3 mode before that server. Objects and aggregates are those of its HTTP interface; the counters
of a page are read off the page in Chromium.

{table}
We: what is in the store, and what `dial9-bpf check` counts in it. A page's events are the starts and ends of
polls, parks, unparks and wakes; what else a segment holds is in other lists of the viewer. Its workers are
those that park, its tasks those that a segment announces. In several segments together a worker and a task
count once; `check` does not print ids, so the verb reads them. The aggregates take a poll's end as proven when
it is in the same segment and before the task's next start on another worker.
"
    );
    let path = shell::root().join("integration/VIEWER.md");
    fs::write(&path, text).with_context(|| path.display().to_string())
}

/// Escaped for a query.
fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            // A String takes everything.
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
