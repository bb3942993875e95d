//! What the GPU task ([`super::task`]) knows of an instance beside the policy.

use super::queue::{Applicant, Word};
use crate::policy::residency::{CardIndex, Command};
use std::time::Instant;

/// An instance that asked for a place, and has it until it is gone.
pub(super) struct Seated {
    pub(super) applicant: Applicant,
    pub(super) card: Option<CardIndex>,
    /// The order that is not answered yet.
    pub(super) order: Option<(u64, Command)>,
    /// It starts, or has something in flight.
    works: bool,
    /// It worked since it last said what it has.
    has_news: bool,
    /// A look at the card that began before this moment says nothing of what was said or moved since.
    pub(super) said_at: Instant,
}

impl Seated {
    /// `works`: it is to be started, or is starting.
    pub(super) fn new(applicant: Applicant, card: Option<CardIndex>, works: bool) -> Self {
        Self { applicant, card, order: None, works, has_news: true, said_at: Instant::now() }
    }

    /// Whether what it has may be other than what it said.
    pub(super) fn may_have_changed(&self) -> bool {
        self.works || self.has_news
    }

    /// What a word of it says of itself.
    pub(super) fn hear(&mut self, word: &Word) {
        if word.is_news() {
            self.said_at = Instant::now();
        }
        match word {
            Word::Busy => self.works = true,
            Word::Ready | Word::Idle => (self.works, self.has_news) = (false, true),
            Word::Used(_) => self.has_news = false,
            Word::Place(_)
            | Word::Adopted { .. }
            | Word::Want
            | Word::Unwanted
            | Word::Yielded
            | Word::Moved(_)
            | Word::Gone => {}
        }
    }
}
