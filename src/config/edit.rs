//! Writing keys into a configuration file, with its comments, order, owner and mode kept.
//!
//! Knows TOML and files, and nothing of what keys mean.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

/// Reason why a file was not changed. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// It cannot be read or written.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// Failed operation, as a sentence's beginning.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// It is not TOML.
    #[error("{} is not TOML: {source}", path.display())]
    Syntax {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser, with its position.
        source: toml_edit::TomlError,
    },
    /// A key that has to be a table is something else.
    #[error("{key} is not a table")]
    NotATable {
        /// Full name of the key.
        key: String,
    },
}

/// Sets keys, each by its full name such as `ses.events.queue_url`, to texts; the names of those
/// that had another value or none. The file appears whole, or stays as it was.
pub fn set_texts<'a>(path: &Path, texts: &[(&'a str, &str)]) -> Result<Vec<&'a str>, EditError> {
    // Through a symbolic link, so that it stays one.
    let path = fs::canonicalize(path).map_err(io_error("cannot find", path))?;
    let text = fs::read_to_string(&path).map_err(io_error("cannot read", &path))?;
    let mut document: DocumentMut =
        text.parse().map_err(|source| EditError::Syntax { path: path.clone(), source })?;
    let mut changed = Vec::new();
    for (key, text) in texts {
        if set(document.as_table_mut(), key, text)? == Change::Made {
            changed.push(*key);
        }
    }
    if !changed.is_empty() {
        replace(&path, &document.to_string()).map_err(io_error("cannot write", &path))?;
    }
    Ok(changed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Made,
}

fn set(root: &mut dyn TableLike, key: &str, text: &str) -> Result<Change, EditError> {
    let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = root;
    let mut is_inline = false;
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        let missing = if is_inline {
            Item::Value(Value::InlineTable(InlineTable::new()))
        } else {
            Item::Table(Table::new())
        };
        let item = table.entry(part).or_insert(missing);
        is_inline = item.is_inline_table();
        table =
            item.as_table_like_mut().ok_or_else(|| EditError::NotATable { key: key.to_owned() })?;
    }
    match table.get_mut(name).and_then(Item::as_value_mut) {
        Some(value) if value.as_str() == Some(text) => return Ok(Change::None),
        Some(value) => {
            // A comment behind the value stays behind it.
            let decor = value.decor().clone();
            *value = Value::from(text);
            *value.decor_mut() = decor;
        }
        None => {
            table.insert(name, toml_edit::value(text));
        }
    }
    Ok(Change::Made)
}

/// Puts a new file in the place of one, with its owner and mode.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let old = fs::metadata(path)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(text.as_bytes())?;
    keep_owner(new.as_file(), &old)?;
    new.as_file().set_permissions(old.permissions())?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    File::open(directory)?.sync_all()
}

fn keep_owner(new: &File, old: &Metadata) -> io::Result<()> {
    let made = new.metadata()?;
    if (made.uid(), made.gid()) == (old.uid(), old.gid()) {
        return Ok(());
    }
    fchown(new, Some(old.uid()), Some(old.gid()))
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EditError {
    let path = path.to_owned();
    move |source| EditError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const TEXTS: [(&str, &str); 2] =
        [("ses.configuration_set", "pillarbox"), ("ses.events.queue_url", "https://x.org/1/q")];

    /// Content of the file after the change, and the keys that are reported as changed.
    fn edited(before: &str) -> (String, Vec<&'static str>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pillarbox.toml");
        fs::write(&path, before).unwrap();
        let changed = set_texts(&path, &TEXTS).unwrap();
        let after = fs::read_to_string(&path).unwrap();
        assert_eq!(set_texts(&path, &TEXTS).unwrap(), Vec::<&str>::new(), "once is enough");
        assert_eq!(fs::read_to_string(&path).unwrap(), after);
        (after, changed)
    }

    #[test]
    fn keys_are_set_among_comments_that_stay() {
        let before = "# top\nlisten = \"127.0.0.1:1\" # why\n\n[ses] # provider\n\
                      # old\nconfiguration_set = \"old\" # set\nregion = 'eu-west-1'\n\n\
                      [sending]\n# last\n";
        let after = "# top\nlisten = \"127.0.0.1:1\" # why\n\n[ses] # provider\n\
                     # old\nconfiguration_set = \"pillarbox\" # set\nregion = 'eu-west-1'\n\n\
                     [ses.events]\nqueue_url = \"https://x.org/1/q\"\n\n\
                     [sending]\n# last\n";
        assert_eq!(edited(before), (after.to_owned(), vec![TEXTS[0].0, TEXTS[1].0]));
    }

    #[test]
    fn all_ways_to_write_a_table_are_kept() {
        for before in [
            "",
            "ses.region = \"eu-west-1\"\n",
            "ses = { region = \"eu-west-1\" }\n",
            "[ses]\nevents = { queue_url = \"x\" }\n",
            "[ses.events]\n# queue_url = \"\"\n",
            "[ses]\nconfiguration_set = \"pillarbox\"\n[ses.events]\nqueue_url = \"x\"\n",
        ] {
            let (after, _) = edited(before);
            let read: toml::Table = after.parse().unwrap_or_else(|error| panic!("{after}{error}"));
            assert_eq!(read["ses"]["configuration_set"].as_str(), Some("pillarbox"), "{after}");
            assert_eq!(read["ses"]["events"]["queue_url"].as_str(), Some("https://x.org/1/q"));
            for line in before.lines().filter(|line| line.starts_with('#')) {
                assert!(after.contains(line), "{after}");
            }
        }
    }

    #[test]
    fn mode_and_link_stay_and_what_cannot_be_edited_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("real.toml");
        let link = directory.path().join("link.toml");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        set_texts(&link, &TEXTS).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert!(fs::read_to_string(&path).unwrap().contains("queue_url"));

        for (text, expected) in [("ses = 1", "not a table"), ("ses = [", "not TOML")] {
            fs::write(&path, text).unwrap();
            let error = set_texts(&path, &TEXTS).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing is left behind");
    }
}
