//! Modules of a program, read from its sources: children, imports and mentions.

use crate::rust::code;
use std::collections::{BTreeMap, BTreeSet};

/// A path of names, from the crate's root.
pub(super) type Path = Vec<String>;

/// Declarations and mentions of a module.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) children: BTreeSet<String>,
    /// Names that `use` brings in, with where they come from.
    pub(super) imports: BTreeMap<String, Path>,
    pub(super) mentions: Vec<Path>,
}

/// Reads a file as the module at `path`, whose children lie in `folder`, and all modules below it.
pub(super) fn read(
    file: &str,
    folder: &str,
    path: &Path,
    sources: &BTreeMap<&str, &str>,
    modules: &mut BTreeMap<Path, Module>,
) {
    let Some(source) = sources.get(file) else { return };
    let blank = code(source);
    let tokens = tokens(&blank);
    let mut parser = Parser { tokens: &tokens, at: 0, files: Vec::new() };
    parser.module(path, modules);
    for child in parser.files {
        let below = child[path.len()..].join("/");
        let flat = format!("{folder}{below}.rs");
        let file = if sources.contains_key(flat.as_str()) { flat } else { format!("{folder}{below}/mod.rs") };
        read(&file, &format!("{folder}{below}/"), &child, sources, modules);
    }
}

/// The words and signs of code, `::` as one.
fn tokens(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    at: usize,
    /// Modules that are files of their own.
    files: Vec<Path>,
}

impl<'a> Parser<'a> {
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or("")
    }

    /// Reads to the end of the file, or to the brace that ends an inline module.
    fn module(&mut self, path: &Path, modules: &mut BTreeMap<Path, Module>) {
        let mut module = Module::default();
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match (self.peek(0), self.peek(1), self.peek(2)) {
                ("#", "[", _) if self.is_test_attribute() => self.skip_item(),
                ("mod", name, ";") => {
                    module.children.insert(name.to_owned());
                    self.files.push([path.as_slice(), &[name.to_owned()]].concat());
                    self.at += 3;
                }
                ("mod", name, "{") => {
                    module.children.insert(name.to_owned());
                    self.at += 3;
                    self.module(&[path.as_slice(), &[name.to_owned()]].concat(), modules);
                }
                ("use", ..) => {
                    self.at += 1;
                    self.use_tree(Path::new(), &mut module);
                }
                ("{", ..) => {
                    depth += 1;
                    self.at += 1;
                }
                ("}", ..) if depth == 0 => {
                    self.at += 1;
                    break;
                }
                ("}", ..) => {
                    depth -= 1;
                    self.at += 1;
                }
                (first, "::", _) if is_name(first) && !self.follows_path() => self.mention(&mut module),
                _ => self.at += 1,
            }
        }
        modules.insert(path.clone(), module);
    }

    /// Returns true if the next token is the rest of a path, a field or a method.
    fn follows_path(&self) -> bool {
        self.at > 0 && matches!(self.tokens[self.at - 1], "::" | ".")
    }

    fn mention(&mut self, module: &mut Module) {
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        module.mentions.push(path);
    }

    /// `#[cfg(test)]` and `#[test]`.
    fn is_test_attribute(&self) -> bool {
        let inner: Vec<&str> = (2..8).map(|ahead| self.peek(ahead)).collect();
        inner.starts_with(&["cfg", "(", "test", ")", "]"]) || inner.starts_with(&["test", "]"])
    }

    /// Passes by attributes and the item after them.
    fn skip_item(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            let token = self.peek(0);
            self.at += 1;
            match token {
                "{" | "(" | "[" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return;
                    }
                }
                ";" if depth == 0 => return,
                _ => {}
            }
        }
    }

    /// Reads what follows `use`, or one branch of it.
    fn use_tree(&mut self, mut path: Path, module: &mut Module) {
        loop {
            match self.peek(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.use_tree(path.clone(), module);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    module.mentions.push(path);
                    return;
                }
                "::" => self.at += 1,
                "self" if !path.is_empty() => self.at += 1,
                name if is_name(name) && name != "as" => {
                    path.push(name.to_owned());
                    self.at += 1;
                }
                _ => break,
            }
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if self.peek(0) == "as" {
            name = self.peek(1).to_owned();
            self.at += 2;
        }
        module.mentions.push(path.clone());
        module.imports.insert(name, path);
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
