//! Batches of a step: which tokens of which requests the engine computes next. Pure: no clock, no I/O.
//!
//! ```text
//!            add ──▶ waiting ──admission──▶ running: prompt in chunks ──▶ one token a step (or drafts) ──▶ end
//!                      ▲                                    │                        │
//!                      └──────────── preemption ────────────┴────────────────────────┘
//! ```
//!
//! A step has one budget of tokens: first every sequence that decodes gets its token, then prompts share the rest.
//! The caller drives it, with `now` as the time since its start:
//!
//! ```text
//! batcher.add(request, now)?; batcher.cancel(id);
//! loop {
//!     batcher.expire(now, &mut ended);                    // requests past their deadline
//!     batcher.step(now, &mut plan, &mut scheduled);       // scheduled[i] belongs to plan.segments[i]
//!     backend.step(&plan)?;                               // where it fails: batcher.abandon()
//!     // sample the rows of `scheduled`
//!     batcher.complete(now, &outcomes);
//!     batcher.draft(id, choice, &tokens);                 // optional, verified by the next step
//! }
//! ```
//!
//! Invariants: a step is never empty while a request lives; the most senior sequence is never preempted; blocks free,
//! cached and used add up to all ([`Batcher::audit`]); what a sequence computes does not depend on the others.
#![forbid(unsafe_code)]

mod admission;
mod batcher;
mod complete;
mod pace;
mod queue;
mod request;
mod sequence;
mod share;
mod slab;
mod step;

pub use batcher::Batcher;
pub use request::{Limits, LimitsError, Outcome, Refusal, Request, RequestId, Scheduled, Status};
