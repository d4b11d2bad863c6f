//! What fails is kept, counted, and tried again.

use super::*;

#[tokio::test(start_paused = true)]
async fn passing_failures_are_tried_again_until_they_pass() {
    let acts = [
        Act::NoReply,
        Act::Answer(503),
        Act::Answer(500),
        Act::Take,
        Act::NoReply,
    ];
    let (dir, sink) = (spool(4), Scripted::acting(acts));
    let running = Running::plain(&dir, &sink);
    let done = running.until(|status| status.uploaded == 4).await;
    let failures = Failures {
        transport: 2,
        throttled: 1,
        server: 1,
        ..Failures::default()
    };
    assert_eq!(done.failures, failures);
    assert_eq!(sink.keys(), (0..4).map(key).collect::<Vec<_>>());
    assert_eq!(sink.puts(), 8);
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_one_put_a_delay() {
    let (dir, sink) = (spool(50), Scripted::always(Act::Answer(503)));
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 4);
    tokio::time::sleep(Duration::from_hours(1)).await;
    // Four at first, then with delays that double up to between 150 and 300 s.
    let puts = sink.puts();
    assert!((4 + 10..4 + 8 + 24).contains(&puts), "{puts}");
    assert_eq!(running.status.snapshot().degraded, None);
    sink.then(Act::Take);
    running.until(|status| status.uploaded == 50).await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_when_the_credentials_change() {
    let (dir, sink) = (spool(3), Scripted::always(Act::Answer(403)));
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    let refused = running.until(|status| status.degraded.is_some()).await;
    assert_eq!(refused.degraded.as_deref(), Some("the store answered 403"));
    assert_eq!(refused.failures.refused, 1);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(sink.puts(), 1, "nothing has changed");
    sink.then(Act::Take);
    sink.0.credentials.store(1, Ordering::Relaxed);
    let since = Instant::now();
    let done = running.until(|status| status.uploaded == 3).await;
    assert!(
        since.elapsed() <= Duration::from_secs(31),
        "{:?}",
        since.elapsed()
    );
    assert_eq!((done.degraded, done.failures.refused), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_tried_again_after_long() {
    let (dir, sink) = (
        spool(3),
        Scripted::acting([Act::Answer(404), Act::Answer(404)]),
    );
    let start = Instant::now();
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    let done = running.until(|status| status.uploaded == 3).await;
    assert!(start.elapsed() >= Duration::from_mins(10));
    assert_eq!((done.failures.refused, done.degraded), (2, None));
}

#[tokio::test(start_paused = true)]
async fn one_bad_object_does_not_hold_up_the_others() {
    let (dir, sink) = (spool(5), Scripted::acting([Act::Answer(413)]));
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    let others = running.until(|status| status.uploaded == 4).await;
    assert_eq!((others.rejected, others.degraded), (1, None));
    assert!(file(&dir, 0).exists());
    let all = running.until(|status| status.uploaded == 5).await;
    assert_eq!(all.rejected, 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_always_fails_does_not_hold_up_the_others() {
    let (dir, sink) = (spool(5), Scripted::default());
    *sink.0.poison.lock().unwrap() = Some(key(0));
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    let others = running.until(|status| status.uploaded == 4).await;
    assert_eq!(others.failures.server, 1);
    assert!(file(&dir, 0).exists());
    *sink.0.poison.lock().unwrap() = None;
    running.until(|status| status.uploaded == 5).await;
}

#[tokio::test(start_paused = true)]
async fn segments_are_compressed_during_an_outage() {
    let (dir, sink) = (spool(3), Scripted::always(Act::Answer(403)));
    let running = Running::plain(&dir, &sink);
    running.until(|status| status.degraded.is_some()).await;
    for _ in 0..3 {
        assert!(running.offers.send(sealed(&dir)).await.is_ok());
    }
    let compressed = running.until(|status| status.compressed == 3).await;
    assert!(compressed.degraded.is_some());
    sink.then(Act::Take);
    running.until(|status| status.uploaded == 6).await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_disk_is_left_alone_for_a_while() {
    let (dir, sink) = (spool(1), Scripted::default());
    // Else a second put finds the segment that the first one gave back.
    let running = Running::new(&dir, &sink, |_, upload| upload.concurrency = 1);
    running.is_broken.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let failed = running.status.snapshot();
    assert!((5..8).contains(&failed.failures.local), "{failed:?}");
    let text = failed.last_error.unwrap();
    assert!(text.starts_with("cannot mark somewhere: "), "{text}");
    assert_eq!(sink.puts(), 0);
    running.is_broken.store(false, Ordering::Relaxed);
    running.until(|status| status.uploaded == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_file_that_somebody_removed_is_no_obstacle() {
    let (dir, sink) = (spool(3), Scripted::default());
    let running = Running::plain(&dir, &sink);
    std::fs::remove_file(file(&dir, 0)).unwrap();
    let done = running.until(|status| status.uploaded == 2).await;
    assert_eq!(sink.keys(), [key(1), key(2)]);
    assert!(done.failures.local >= 1);
}
