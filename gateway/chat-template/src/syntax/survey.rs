//! Words and literals of a template, found without running it.

use crate::syntax::token::{Kind, Token, tokens};
use crate::syntax::{Segment, segments};
use std::collections::BTreeSet;

/// Methods whose argument is searched for in a text.
const SEARCHES: &[&str] = &[
    "count",
    "endswith",
    "find",
    "index",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "startswith",
    "strip",
];

/// Words and literals of a template.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Names and keywords in its tags.
    pub(crate) names: BTreeSet<String>,
    /// Texts that it can print: those between its tags, and texts in quotes.
    pub(crate) literals: Vec<String>,
    /// Texts in quotes that it searches for in others, such as `</think>` in the content of a message.
    pub(crate) searched: BTreeSet<String>,
}

impl Survey {
    /// Surveys a source.
    pub(crate) fn of(source: &str) -> Self {
        let mut survey = Self::default();
        for segment in segments(source) {
            match segment {
                Segment::Text(text) => survey.literals.push(text.to_owned()),
                Segment::Tag(tag) => survey.add(&tokens(tag.inside)),
                Segment::Comment(_) => {}
            }
        }
        survey
    }

    /// Returns true if a tag has this name, or this text in quotes.
    pub(crate) fn mentions(&self, word: &str) -> bool {
        self.names.contains(word) || self.literals.iter().any(|literal| literal == word)
    }

    fn add(&mut self, found: &[Token<'_>]) {
        for (at, token) in found.iter().enumerate() {
            match token.kind {
                Kind::Name => {
                    self.names.insert(token.text.to_owned());
                }
                Kind::Text => {
                    let text = token.unquoted();
                    if is_searched(found, at) {
                        self.searched.insert(text.clone());
                    }
                    self.literals.push(text);
                }
                Kind::Number | Kind::Sign => {}
            }
        }
    }
}

fn is_searched(found: &[Token<'_>], at: usize) -> bool {
    let before = |steps: usize| at.checked_sub(steps).and_then(|at| found.get(at));
    let after = |steps: usize| found.get(at + steps);
    let argument = before(1).is_some_and(|token| token.is_sign("("))
        && before(2).is_some_and(|token| SEARCHES.contains(&token.text));
    let contained = after(1).is_some_and(|token| token.is_name("in"))
        || (after(1).is_some_and(|token| token.is_name("not")) && after(2).is_some_and(|token| token.is_name("in")));
    argument || contained
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searched_texts_are_found() {
        let survey = Survey::of("{% if '</a>' in x and \"b\" not in y %}{{ x.split('c')[-1] ~ 'd' }}{% endif %}");
        assert_eq!(survey.searched.iter().map(String::as_str).collect::<Vec<_>>(), ["</a>", "b", "c"]);
        assert!(survey.literals.contains(&"d".to_owned()));
    }

    #[test]
    fn words_are_names_and_texts_in_quotes() {
        let survey = Survey::of("thinking{{ message['reasoning'] }}{{ message.content }}{# role #}");
        assert!(survey.mentions("reasoning") && survey.mentions("content") && !survey.mentions("role"));
    }
}
