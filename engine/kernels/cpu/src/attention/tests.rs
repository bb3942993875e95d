//! Division of a step into tasks, and ranges of positions.

use super::*;
use omni_kernels::{Segment, StepPlan};

/// Step of segments with these starts and lengths.
fn step(segments: &[(usize, usize)]) -> StepPlan {
    let mut plan = StepPlan::default();
    for (start, length) in segments {
        let first = plan.tokens.len();
        plan.tokens.resize(first + length, 0);
        plan.segments.push(Segment { tokens: first..first + length, start: *start, blocks: 0..0, logits: 1 });
    }
    plan
}

#[test]
fn tasks_cover_each_query_once_and_each_split_of_it() {
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..200 {
        let heads = Heads { kv: random.usize(1..4), queries: 0, width: 16 };
        let heads = Heads { queries: heads.kv * random.usize(1..60), ..heads };
        let segments: Vec<_> = (0..random.usize(1..5)).map(|_| (random.usize(0..2000), random.usize(1..100))).collect();
        let step = step(&segments);
        let threads = random.usize(1..5);
        let limits = Limits { tokens: step.tokens.len(), slots: 32 * threads };
        let mut plan = Plan::new(Vec::new(), limits);
        let has_last_only = round % 2 == 0;
        plan.fill(&step, heads, threads, |segment| if has_last_only { 1 } else { segment.tokens.len() });
        let mut queries: Vec<Vec<usize>> = vec![Vec::new(); step.tokens.len()];
        let mut slots = Vec::new();
        for task in &plan.tasks {
            let segment = &step.segments[task.segment];
            assert!(task.count >= 1 && task.count * heads.group() <= heads.rows());
            let (split, count) = task.split.map_or((0, 1), |split| (split.number, split.count));
            if let Some(split) = task.split {
                assert_eq!(split.count, (segment.start + segment.tokens.len()).div_ceil(SPLIT));
                let rows = task.count * heads.group();
                let first = |head| split.row + (split.number * heads.kv + head) * rows;
                slots.extend((0..heads.kv).flat_map(|head| first(head)..first(head) + rows));
            }
            for query in task.first..task.first + task.count {
                let splits = &mut queries[segment.tokens.start + query];
                splits.push(split);
                assert!(splits.len() <= count);
            }
        }
        assert!(plan.tasks.len() <= limits.tasks());
        assert!(slots.iter().all(|row| *row < limits.slots * heads.rows()));
        slots.sort_unstable();
        let count = slots.len();
        slots.dedup();
        assert_eq!(slots.len(), count);
        for segment in &step.segments {
            for token in segment.tokens.clone() {
                let is_wanted = !has_last_only || token + 1 == segment.tokens.end;
                assert_eq!(!queries[token].is_empty(), is_wanted);
            }
        }
    }
}

#[test]
fn all_tasks_are_taken_once_for_each_head() {
    let heads = Heads { queries: 6, kv: 2, width: 16 };
    let step = step(&[(3000, 1)]);
    let mut plan = Plan::new(Vec::new(), Limits { tokens: 1, slots: 64 });
    plan.fill(&step, heads, 4, |_| 1);
    for _ in 0..2 {
        plan.restart();
        let mut last = 0;
        let mut taken = Vec::new();
        while let Some((task, head)) = plan.take(heads) {
            let split = task.split.unwrap();
            taken.push((split.number, head));
            last += usize::from(plan.finish(split, head));
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..12).flat_map(|split| [(split, 0), (split, 1)]).collect::<Vec<_>>());
        assert_eq!(last, 2);
    }
}

#[test]
fn ranges_are_seen_from_a_chunk() {
    assert_eq!(within(&(10..100), &(0..64)), 10..64);
    assert_eq!(within(&(10..100), &(64..128)), 0..36);
    assert!(within(&(10..20), &(64..128)).is_empty());
    assert!(within(&(70..80), &(0..64)).is_empty());
    assert_eq!(visible(Mask::Window { window: 4 }, 10, 11), 7..11);
    assert_eq!(visible(Mask::Window { window: 4 }, 1, 2), 0..2);
    assert_eq!(visible(Mask::All, 1, 20), 0..20);
}
