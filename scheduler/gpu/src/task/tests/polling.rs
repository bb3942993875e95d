//! Polls of instances' usage: which, how often, and how they relate to the driver's measurements.

use super::{GIB, Played, World};
use crate::probe::Seen;
use crate::task::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Questions and looks are both every two seconds: a look during which every instance says what it has is one too.
#[tokio::test(start_paused = true)]
async fn looks_in_step_with_what_instances_say_are_believed_too() {
    let world = World::new(1);
    let mut cheat = world.model("cheat", 2);
    cheat.run(2).await;
    cheat.reservation.busy(true);
    let owned = vec![(cheat.instance.clone(), 4 * GIB)];
    let answers = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&answers);
    let ended = tokio::spawn(async move {
        loop {
            let Some((_, decision)) = cheat.inbox.recv().await else { panic!("another message") };
            match decision {
                Decision::SampleUsage => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    cheat.reservation.on_usage(cheat.usage);
                }
                decision => return decision,
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(10)).await; // past the poll
    for look in 1..=2 {
        let began = std::time::Instant::now();
        tokio::time::sleep(EVERY).await;
        assert!(answers.load(Ordering::Relaxed) >= look, "it spoke during this look");
        let seen = Seen { used_bytes: 4 * GIB, owned: owned.clone() };
        world.driver.send_replace(Reading { began, cards: vec![Ok(seen)] });
    }
    let ended = tokio::time::timeout(EVERY, ended).await.expect("it is found out").unwrap();
    assert!(matches!(ended, Decision::End { displaced: false, .. }), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_is_seldom_polled() {
    let world = World::new(1);
    let mut model = world.model("a", 2);
    model.run(2).await;
    asked(&mut model, 3).await; // what it has after its start
    assert_eq!(asked(&mut model, 60).await, 2);
    model.reservation.busy(true);
    model.reservation.busy(false);
    let Some((_, Decision::SampleUsage)) = model.inbox.recv().await else { panic!("not asked") };
}

/// How often it is asked in so many seconds. It answers.
async fn asked(model: &mut Played, seconds: u64) -> u32 {
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut count = 0;
    while let Ok(decision) = tokio::time::timeout_at(until, model.inbox.recv()).await {
        assert!(matches!(decision, Some((_, Decision::SampleUsage))), "{decision:?}");
        model.reservation.on_usage(model.usage);
        count += 1;
    }
    count
}
