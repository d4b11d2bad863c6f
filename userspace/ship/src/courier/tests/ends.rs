//! How it stops, on the clock and on its own thread.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_deadline_leaves_the_rest_and_says_so() {
    let (dir, sink) = (spool(5), Scripted::acting([Act::Take, Act::Take]));
    sink.then(Act::Hang);
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    running.until(|status| status.uploaded == 2).await;
    let start = Instant::now();
    let (status, left) = running.stop(Duration::from_secs(20)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(20));
    assert_eq!(status.uploaded, 2);
    assert_eq!(left.segments, 3);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_tried_once_more_at_the_end() {
    let (dir, sink) = (spool(3), Scripted::always(Act::Answer(403)));
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    running.until(|status| status.degraded.is_some()).await;
    sink.then(Act::Take);
    let (status, left) = running.stop(Duration::from_secs(20)).await;
    assert_eq!((status.uploaded, left.segments), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn the_end_does_not_wait_for_what_comes_too_late() {
    let (dir, sink) = (spool(3), Scripted::always(Act::Answer(403)));
    let running = Running::plain(&dir, &sink);
    running.until(|status| status.degraded.is_some()).await;
    let start = Instant::now();
    let (status, left) = running.stop(Duration::from_secs(20)).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!((status.uploaded, left.segments), (0, 3));
    assert!(status.degraded.is_some());
}

#[tokio::test(start_paused = true)]
async fn what_was_offered_last_is_put_before_the_end() {
    let (dir, sink) = (spool(0), Scripted::acting([Act::Answer(500), Act::NoReply]));
    let running = Running::plain(&dir, &sink);
    for _ in 0..3 {
        assert!(running.offers.try_send(sealed(&dir)).is_ok());
    }
    let (status, left) = running.stop(Duration::from_secs(20)).await;
    assert_eq!((status.uploaded, left.segments), (3, 0));
}

fn start(dir: &TempDir, sink: &Scripted, queue: usize) -> Courier<SealedSegment> {
    let settings = Settings {
        queue,
        ..Settings::default()
    };
    let upload = Upload::to(sink.clone(), "p", 7);
    Courier::start(settings, shelved(dir), Some(upload)).unwrap()
}

const TIME: Duration = Duration::from_secs(10);

#[test]
fn offers_come_back_when_there_is_no_place() {
    let (dir, sink) = (spool(0), Scripted::default());
    let courier = start(&dir, &sink, 1);
    let mut returned = Vec::new();
    for _ in 0..60 {
        returned.extend(courier.offer(sealed(&dir)).err());
    }
    let offered = 60 - returned.len() as u64;
    let report = courier.stop(TIME);
    assert_eq!(report.status.uploaded, offered);
    assert_eq!(report.left.unwrap().segments, 0);
    assert!(returned.iter().all(|segment| segment.path.exists()));
}

#[test]
fn a_dead_courier_is_told_and_blocks_nobody() {
    let (dir, sink) = (spool(1), Scripted::always(Act::Die));
    let courier = start(&dir, &sink, 1);
    let dead = courier
        .status()
        .wait(TIME, |status| status.degraded.is_some());
    assert_eq!(dead.degraded.as_deref(), Some("the courier has died"));
    assert!(courier.status().ends_within(TIME));
    assert!(courier.offer(sealed(&dir)).is_err());
    assert_eq!(courier.stop(TIME).left, None);
    assert!(file(&dir, 0).exists());
}

#[test]
fn one_that_is_dropped_ends() {
    let (dir, sink) = (spool(1), Scripted::always(Act::Hang));
    let courier = start(&dir, &sink, 1);
    let status = courier.status();
    drop(courier);
    assert!(status.ends_within(TIME));
    assert!(file(&dir, 0).exists());
}

/// On the real clock: nobody waits the hour.
#[test]
fn a_stop_that_is_cut_short_leaves_the_rest() {
    let (dir, sink) = (spool(1), Scripted::always(Act::Hang));
    let courier = start(&dir, &sink, 1);
    let report = courier.stop_unless(Duration::from_hours(1), || true);
    assert_eq!(report.left.map(|left| left.segments), Some(1));
    assert!(file(&dir, 0).exists());
}

/// On the real clock: nobody waits the hour.
#[test]
fn a_compression_that_fails_at_the_end_is_the_last() {
    let dir = spool(0);
    let courier = Courier::start::<Scripted>(Settings::default(), shelved(&dir), None).unwrap();
    let segment = sealed(&dir);
    std::fs::create_dir(segment.path.with_extension("bin.gz.tmp")).unwrap();
    assert!(courier.offer(segment).is_ok());
    let report = courier.stop(Duration::from_hours(1));
    assert_eq!(report.left.map(|left| left.segments), Some(1));
    assert!(report.status.failures.local >= 1, "{report:?}");
}
