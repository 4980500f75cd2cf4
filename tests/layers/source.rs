//! Rust sources as far as the layer test has to understand them: modules, paths and strings.
//!
//! A reader of its own, and a small one: it needs no types and no macros, only what a file names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A file below `src`.
pub(crate) struct Source {
    /// From the package's root, such as `src/store/redb.rs`.
    pub(crate) path: String,
    /// The module, without `crate`: empty for `lib.rs`, `main` for the binary.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
    tokens: Vec<Token>,
}

/// A path that a file names, such as `crate::store::Store` or `tokio::spawn`.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) target: Target,
    pub(crate) line: usize,
    pub(crate) is_test: bool,
}

#[derive(Debug)]
pub(crate) enum Target {
    /// Below the crate's root.
    Own(Vec<String>),
    /// Another crate.
    External(String),
}

#[derive(Debug, Clone)]
struct Token {
    kind: Kind,
    line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Word(String),
    Text(String),
    PathSeparator,
    Mark(char),
}

/// Where a walk through the tokens is.
struct Place {
    /// The inline modules around it, and whether each brace that is open is one of theirs.
    inline: Vec<String>,
    braces: Vec<Brace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Brace {
    Module,
    TestModule,
    Other,
}

impl Source {
    /// Every file below `src`.
    pub(crate) fn all() -> Vec<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut paths = Vec::new();
        collect(&root.join("src"), &mut paths);
        paths.sort();
        paths.iter().map(|path| Self::read(root, path)).collect()
    }

    fn read(root: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let below = path.strip_prefix("src/").unwrap().strip_suffix(".rs").unwrap();
        let module = match below {
            "lib" => Vec::new(),
            other => other.split('/').map(str::to_owned).collect(),
        };
        Self { path, module, tokens: tokens(&text), text }
    }

    /// The module of the map that the file belongs to; `lib` for the crate's root.
    pub(crate) fn top(&self) -> &str {
        self.module.first().map_or("lib", String::as_str)
    }

    /// Everything but blanks and comments that opens with this word, as in `todo!`.
    pub(crate) fn macro_calls(&self, name: &str) -> Vec<usize> {
        let is_call = |pair: &&[Token]| pair[0].is(name) && pair[1].kind == Kind::Mark('!');
        self.tokens.windows(2).filter(is_call).map(|pair| pair[0].line).collect()
    }

    /// The string literals, with their lines.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.tokens.iter().filter_map(|token| match &token.kind {
            Kind::Text(text) => Some((text.as_str(), token.line)),
            Kind::Word(_) | Kind::PathSeparator | Kind::Mark(_) => None,
        })
    }

    /// The modules that the file declares for tests alone, with their full paths.
    pub(crate) fn test_modules(&self) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for at in 0..self.tokens.len() {
            if let Some((name, Kind::Mark(';'), true)) = self.module_at(at) {
                found.push(self.module.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        found
    }

    /// The paths that the file names and that may leave its module.
    pub(crate) fn names(&self) -> Vec<Named> {
        let local = self.local_names();
        let mut named = Vec::new();
        let mut place = Place { inline: Vec::new(), braces: Vec::new() };
        let mut at = 0;
        while at < self.tokens.len() {
            place.step(self, at);
            if !self.starts_path(at) {
                at += 1;
                continue;
            }
            let (line, mut next) = (self.tokens[at].line, at);
            let is_test = place.braces.contains(&Brace::TestModule);
            let depth = self.module.len() + place.inline.len();
            for path in self.tree(&mut next) {
                if let Some(target) = target(&path, depth, &local) {
                    named.push(Named { target, line, is_test });
                }
            }
            at = next.max(at + 1);
        }
        named
    }

    /// Names that are not crates here: declared modules, and what is imported from our own.
    fn local_names(&self) -> BTreeSet<String> {
        let mut local = BTreeSet::new();
        for at in 0..self.tokens.len() {
            if let Some((name, ..)) = self.module_at(at) {
                local.insert(name.to_owned());
            }
            if self.tokens[at].is("use") && self.starts_path(at + 1) {
                for path in self.tree(&mut (at + 1)) {
                    if ["crate", "super", "self"].contains(&path[0].as_str()) {
                        local.extend(path.iter().rfind(|part| *part != "self").cloned());
                    }
                }
            }
        }
        local
    }

    /// The module that is declared at this token: its name, what follows it, and whether it is for
    /// tests alone.
    fn module_at(&self, at: usize) -> Option<(&str, Kind, bool)> {
        let [word, name, end] = self.tokens.get(at..at + 3)? else { return None };
        let (Kind::Word(name), true) = (&name.kind, word.is("mod")) else { return None };
        let before = &self.tokens[at.saturating_sub(12)..at];
        let start = before.iter().rposition(|token| {
            matches!(token.kind, Kind::Mark(';' | '{' | '}')) || token.is("mod")
        });
        let attributes = &before[start.map_or(0, |start| start + 1)..];
        let is_test = attributes.windows(3).any(|three| {
            three[0].is("cfg") && three[1].kind == Kind::Mark('(') && three[2].is("test")
        });
        Some((name, end.kind.clone(), is_test))
    }

    fn starts_path(&self, at: usize) -> bool {
        let Some([first, second]) = self.tokens.get(at..at + 2) else { return false };
        let before = at.checked_sub(1).map(|before| &self.tokens[before].kind);
        matches!(first.kind, Kind::Word(_))
            && second.kind == Kind::PathSeparator
            && !matches!(before, Some(Kind::PathSeparator | Kind::Mark('.' | '$')))
    }

    /// The paths of a tree such as `a::{b, c::d}`.
    fn tree(&self, at: &mut usize) -> Vec<Vec<String>> {
        match self.tokens.get(*at).map(|token| &token.kind) {
            Some(Kind::Word(word)) => {
                *at += 1;
                if self.tokens.get(*at).is_none_or(|token| token.kind != Kind::PathSeparator) {
                    return vec![vec![word.clone()]];
                }
                *at += 1;
                let rest = self.tree(at);
                if rest.is_empty() {
                    return vec![vec![word.clone()]];
                }
                let joined = |rest: Vec<String>| [word.clone()].into_iter().chain(rest).collect();
                rest.into_iter().map(joined).collect()
            }
            Some(Kind::Mark('{')) => {
                *at += 1;
                let mut paths = Vec::new();
                while let Some(token) = self.tokens.get(*at) {
                    match token.kind {
                        // `a as b`: the new name is of no interest.
                        Kind::Word(_) if token.is("as") => *at += 2,
                        Kind::Word(_) | Kind::Mark('{') => paths.extend(self.tree(at)),
                        Kind::Mark('}') => {
                            *at += 1;
                            break;
                        }
                        Kind::Text(_) | Kind::PathSeparator | Kind::Mark(_) => *at += 1,
                    }
                }
                paths
            }
            _ => Vec::new(),
        }
    }
}

impl Place {
    fn step(&mut self, source: &Source, at: usize) {
        match source.tokens[at].kind {
            Kind::Mark('{') => {
                let module = at.checked_sub(2).and_then(|at| source.module_at(at));
                self.braces.push(match module {
                    Some((_, _, true)) => Brace::TestModule,
                    Some((_, _, false)) => Brace::Module,
                    None => Brace::Other,
                });
                self.inline.extend(module.map(|(name, ..)| name.to_owned()));
            }
            Kind::Mark('}') => {
                if matches!(self.braces.pop(), Some(Brace::Module | Brace::TestModule)) {
                    self.inline.pop();
                }
            }
            Kind::Word(_) | Kind::Text(_) | Kind::PathSeparator | Kind::Mark(_) => {}
        }
    }
}

impl Token {
    fn is(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(own) if own == word)
    }
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What a path names from a module at this depth; `None` where it stays within.
fn target(path: &[String], depth: usize, local: &BTreeSet<String>) -> Option<Target> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    match path[0].as_str() {
        "crate" | "pillarbox" => Some(Target::Own(path[1..].to_vec())),
        "super" if supers >= depth => Some(Target::Own(path[supers..].to_vec())),
        "super" | "self" | "Self" => None,
        name if local.contains(name) || name.starts_with(char::is_uppercase) => None,
        name => Some(Target::External(name.to_owned())),
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (kind, length) = token(rest, first);
        if let Some(kind) = kind {
            found.push(Token { kind, line });
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// The token at the start of the text, if there is one, and its length in bytes.
fn token(text: &str, first: char) -> (Option<Kind>, usize) {
    let until = |end: &str, from: usize| {
        text[from..].find(end).map_or(text.len(), |found| from + found + end.len())
    };
    if text.starts_with("//") {
        return (None, until("\n", 0));
    }
    if text.starts_with("/*") {
        return (None, until("*/", 2));
    }
    if text.starts_with("::") {
        return (Some(Kind::PathSeparator), 2);
    }
    if let Some((inside, length)) = literal(text) {
        return (Some(Kind::Text(inside.to_owned())), length);
    }
    if first == '\'' {
        // A character, or the mark of a lifetime.
        let mut chars = text.char_indices().skip(1);
        return match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some((at, c))) => (None, until("'", at + c.len_utf8())),
            (Some(_), Some((at, '\''))) => (None, at + 1),
            _ => (None, 1),
        };
    }
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    if in_word(first) {
        let length = text.find(|c| !in_word(c)).unwrap_or(text.len());
        return (Some(Kind::Word(text[..length].to_owned())), length);
    }
    let kind = (!first.is_whitespace()).then_some(Kind::Mark(first));
    (kind, first.len_utf8())
}

/// What is inside the string literal at the start of the text, and the literal's length.
fn literal(text: &str) -> Option<(&str, usize)> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|p| text.starts_with(p))?;
    let body = &text[prefix.len()..];
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let start = text.len() - inside.len();
    if prefix.ends_with('r') {
        let end = format!("\"{}", &body[..hashes]);
        let length = inside.find(&end)?;
        return Some((&inside[..length], start + length + end.len()));
    }
    let mut escaped = false;
    let end = (hashes == 0).then(|| {
        inside.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })
    });
    let length = end??;
    Some((&inside[..length], start + length + 1))
}
