//! Circles in a graph of names.

use std::collections::{BTreeMap, BTreeSet};

/// The circles of a graph: for each group of nodes that reach each other, the shortest one through its first node.
pub(super) fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut in_one = BTreeSet::new();
    let mut found = Vec::new();
    for start in edges.keys() {
        if in_one.contains(start) {
            continue;
        }
        if let Some(circle) = shortest(edges, start) {
            in_one.extend(circle.iter().cloned());
            found.push(circle.join(" -> "));
        }
    }
    found
}

/// The shortest way from a node back to it.
fn shortest(edges: &BTreeMap<String, BTreeSet<String>>, start: &str) -> Option<Vec<String>> {
    let mut before = BTreeMap::<&str, &str>::new();
    let mut queue = vec![start];
    let mut next = 0;
    while let Some(node) = queue.get(next).copied() {
        next += 1;
        for to in edges.get(node).into_iter().flatten().filter(|to| to.as_str() != node) {
            if to == start {
                let mut way = vec![start.to_owned(), node.to_owned()];
                let mut at = node;
                while at != start {
                    at = before[at];
                    way.push(at.to_owned());
                }
                if node == start {
                    way.pop();
                }
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(to.as_str()) {
                before.insert(to, node);
                queue.push(to);
            }
        }
    }
    None
}
