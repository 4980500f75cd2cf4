//! The files and directories of a disk, with what is durable of them.
//!
//! A change of a directory's entries is pending until that directory is synced: a sync of the file
//! does not make its name durable (`fsync(2)`). Owners and modes are durable at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use fastrand::Rng;

use crate::content::Content;

/// Number of the root directory's inode.
pub const ROOT: u64 = 1;

/// Refusal of an operation; its name is that of the `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskError {
    /// `ENOENT`
    NotFound,
    /// `EEXIST`
    Exists,
    /// `ENOTDIR`
    NotADirectory,
    /// `EISDIR`
    IsADirectory,
    /// `ENOTEMPTY`
    NotEmpty,
    /// `ESTALE`: the inode did not survive a cut.
    Stale,
    /// `EIO`
    Io,
    /// `ENOSPC`
    NoSpace,
    /// `EINVAL`
    Invalid,
}

/// Kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
}

/// Owner, mode and time of an inode.
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change.
    pub modified: SystemTime,
}

impl Attributes {
    /// Attributes of a new inode.
    pub fn new(mode: u32, uid: u32, gid: u32) -> Self {
        Self { mode: mode & 0o7777, uid, gid, modified: SystemTime::now() }
    }
}

/// What `stat(2)` shows of an inode.
#[derive(Debug, Clone, Copy)]
pub struct Inode {
    /// Number; no other inode ever has it.
    pub number: u64,
    /// Kind.
    pub kind: Kind,
    /// Owner, mode and time.
    pub attributes: Attributes,
    /// Bytes of a file.
    pub length: u64,
    /// Number of names.
    pub links: u32,
}

/// Entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name in the directory.
    pub name: OsString,
    /// Inode.
    pub inode: u64,
    /// Its kind.
    pub kind: Kind,
}

#[derive(Debug)]
struct Node {
    attributes: Attributes,
    body: Body,
}

#[derive(Debug)]
enum Body {
    File(Content),
    Directory(Directory),
}

#[derive(Debug, Default)]
struct Directory {
    durable: BTreeMap<OsString, u64>,
    now: BTreeMap<OsString, u64>,
}

type Place = (u64, OsString);

/// Change of entries that is durable as a whole or not at all.
#[derive(Debug)]
enum Change {
    Add { at: Place, inode: u64 },
    Remove { at: Place, inode: u64 },
    Move { from: Place, to: Place, inode: u64 },
}

impl Change {
    fn directories(&self) -> Vec<u64> {
        match self {
            Self::Add { at, .. } | Self::Remove { at, .. } => vec![at.0],
            Self::Move { from, to, .. } => vec![from.0, to.0],
        }
    }
}

/// Amount that was pending at a cut, and what became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    /// Sectors and sizes of files that were pending.
    pub sectors: usize,
    /// Changes of entries that were pending.
    pub changes: usize,
    /// Those of them that were lost.
    pub changes_lost: usize,
}

/// A disk.
#[derive(Debug)]
pub struct Disk {
    nodes: BTreeMap<u64, Node>,
    pending: Vec<Change>,
    next: u64,
}

impl Disk {
    /// An empty disk whose root has these attributes.
    pub fn new(root: Attributes) -> Self {
        let node = Node { attributes: root, body: Body::Directory(Directory::default()) };
        Self { nodes: BTreeMap::from([(ROOT, node)]), pending: Vec::new(), next: ROOT + 1 }
    }

    /// Finds an entry.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Inode, DiskError> {
        let number = self.directory(parent)?.now.get(name).copied().ok_or(DiskError::NotFound)?;
        self.inode(number)
    }

    /// Describes an inode.
    pub fn inode(&self, number: u64) -> Result<Inode, DiskError> {
        let node = self.nodes.get(&number).ok_or(DiskError::Stale)?;
        let (kind, length) = match &node.body {
            Body::File(content) => (Kind::File, content.len() as u64),
            Body::Directory(_) => (Kind::Directory, 0),
        };
        let links = u32::try_from(self.names(number).len()).unwrap_or(u32::MAX);
        let links = if kind == Kind::Directory { 2 } else { links };
        Ok(Inode { number, kind, attributes: node.attributes, length, links })
    }

    /// The names that an inode has now.
    pub fn names(&self, number: u64) -> Vec<&OsStr> {
        let directories = self.nodes.values().filter_map(|node| match &node.body {
            Body::Directory(directory) => Some(&directory.now),
            Body::File(_) => None,
        });
        let names = directories.flatten().filter(|(_, inode)| **inode == number);
        names.map(|(name, _)| name.as_os_str()).collect()
    }

    /// Lists a directory.
    pub fn entries(&self, number: u64) -> Result<Vec<Entry>, DiskError> {
        let entries = self.directory(number)?.now.iter().map(|(name, inode)| {
            let kind = self.inode(*inode)?.kind;
            Ok(Entry { name: name.clone(), inode: *inode, kind })
        });
        entries.collect()
    }

    /// Creates a file or a directory.
    pub fn create(
        &mut self,
        parent: u64,
        name: &OsStr,
        kind: Kind,
        attributes: Attributes,
    ) -> Result<Inode, DiskError> {
        let body = match kind {
            Kind::File => Body::File(Content::default()),
            Kind::Directory => Body::Directory(Directory::default()),
        };
        let number = self.next;
        self.add(parent, name, number)?;
        self.next += 1;
        self.nodes.insert(number, Node { attributes, body });
        self.inode(number)
    }

    /// Gives a file another name.
    pub fn link(&mut self, number: u64, parent: u64, name: &OsStr) -> Result<Inode, DiskError> {
        self.content(number)?;
        self.add(parent, name, number)?;
        self.inode(number)
    }

    fn add(&mut self, parent: u64, name: &OsStr, inode: u64) -> Result<(), DiskError> {
        let names = &mut self.directory_mut(parent)?.now;
        if names.contains_key(name) {
            return Err(DiskError::Exists);
        }
        names.insert(name.to_owned(), inode);
        self.pending.push(Change::Add { at: (parent, name.to_owned()), inode });
        Ok(())
    }

    /// Refuses to remove or replace what is of another kind, and a directory with entries.
    fn may_go(&self, found: &Inode, kind: Kind) -> Result<(), DiskError> {
        match (kind, found.kind) {
            (Kind::File, Kind::Directory) => Err(DiskError::IsADirectory),
            (Kind::Directory, Kind::File) => Err(DiskError::NotADirectory),
            (Kind::Directory, Kind::Directory) if !self.entries(found.number)?.is_empty() => {
                Err(DiskError::NotEmpty)
            }
            _ => Ok(()),
        }
    }

    /// Removes the name of a file or of an empty directory.
    pub fn remove(&mut self, parent: u64, name: &OsStr, kind: Kind) -> Result<(), DiskError> {
        let found = self.lookup(parent, name)?;
        self.may_go(&found, kind)?;
        self.directory_mut(parent)?.now.remove(name);
        let at = (parent, name.to_owned());
        self.pending.push(Change::Remove { at, inode: found.number });
        Ok(())
    }

    /// Renames, over another entry only if `replace` says so.
    pub fn rename(
        &mut self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        replace: bool,
    ) -> Result<(), DiskError> {
        let found = self.lookup(parent, name)?;
        match self.lookup(new_parent, new_name) {
            Ok(_) if !replace => return Err(DiskError::Exists),
            Ok(there) if there.number == found.number => return Ok(()),
            Ok(there) => self.may_go(&there, found.kind)?,
            Err(DiskError::NotFound) => {}
            Err(error) => return Err(error),
        }
        self.directory_mut(parent)?.now.remove(name);
        self.directory_mut(new_parent)?.now.insert(new_name.to_owned(), found.number);
        self.pending.push(Change::Move {
            from: (parent, name.to_owned()),
            to: (new_parent, new_name.to_owned()),
            inode: found.number,
        });
        Ok(())
    }

    /// Owner and mode, to be changed.
    pub fn attributes_mut(&mut self, number: u64) -> Result<&mut Attributes, DiskError> {
        Ok(&mut self.nodes.get_mut(&number).ok_or(DiskError::Stale)?.attributes)
    }

    /// Reads a part of a file, up to its end.
    pub fn read(&self, number: u64, offset: u64, length: usize) -> Result<&[u8], DiskError> {
        Ok(self.content(number)?.read(index(offset)?, length))
    }

    /// Writes to a file, without a sync.
    pub fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<(), DiskError> {
        self.attributes_mut(number)?.modified = SystemTime::now();
        let offset = index(offset)?;
        self.content_mut(number)?.write(offset, data);
        Ok(())
    }

    /// Sets the length of a file, without a sync.
    pub fn set_len(&mut self, number: u64, length: u64) -> Result<(), DiskError> {
        let length = index(length)?;
        self.content_mut(number)?.set_len(length);
        Ok(())
    }

    /// Returns true if a write that ends here needs no more space.
    pub fn has_room(&self, number: u64, end: u64) -> Result<bool, DiskError> {
        Ok(self.content(number)?.has_room(index(end)?))
    }

    /// Makes a file's content durable, but not its name.
    pub fn sync(&mut self, number: u64) -> Result<(), DiskError> {
        self.content_mut(number)?.sync();
        Ok(())
    }

    /// Makes a part of a file durable.
    pub fn sync_range(&mut self, number: u64, offset: u64, len: usize) -> Result<(), DiskError> {
        let offset = index(offset)?;
        self.content_mut(number)?.sync_range(offset, len);
        Ok(())
    }

    /// Fails to sync a file: pages are lost that nothing writes any more.
    pub fn lose_pages(&mut self, number: u64, random: &mut Rng) -> Result<(), DiskError> {
        self.content_mut(number)?.lose_pages(random);
        Ok(())
    }

    /// Fails to write a part of a file directly: any of its sectors are durable.
    pub fn tear(
        &mut self,
        number: u64,
        offset: u64,
        len: usize,
        random: &mut Rng,
    ) -> Result<(), DiskError> {
        let offset = index(offset)?;
        self.content_mut(number)?.tear(offset, len, random);
        Ok(())
    }

    /// Makes the entries of a directory durable.
    pub fn sync_directory(&mut self, number: u64) -> Result<(), DiskError> {
        self.directory(number)?;
        // A rename between directories takes along what was before it in both.
        let mut synced = BTreeSet::from([number]);
        loop {
            let before = synced.len();
            for change in &self.pending {
                let directories = change.directories();
                if directories.iter().any(|directory| synced.contains(directory)) {
                    synced.extend(directories);
                }
            }
            if synced.len() == before {
                break;
            }
        }
        for change in std::mem::take(&mut self.pending) {
            if synced.contains(&change.directories()[0]) {
                self.make_durable(&change);
            } else {
                self.pending.push(change);
            }
        }
        Ok(())
    }

    /// Loses power. A seed repeats the choice of what survives.
    pub fn cut(&mut self, random: &mut Rng) -> Loss {
        let changes = std::mem::take(&mut self.pending);
        let mut loss = Loss { changes: changes.len(), ..Loss::default() };
        let way = random.u8(0..4);
        let first = random.usize(..=changes.len());
        for (number, change) in changes.iter().enumerate() {
            let survives = match way {
                0 => false,
                1 => true,
                2 => number < first,
                _ => random.bool(),
            };
            if survives {
                self.make_durable(change);
            } else {
                loss.changes_lost += 1;
            }
        }
        for node in self.nodes.values_mut() {
            match &mut node.body {
                Body::File(content) => {
                    loss.sectors += content.pending();
                    content.cut(random);
                }
                Body::Directory(directory) => directory.now.clone_from(&directory.durable),
            }
        }
        let reachable = self.reachable();
        self.nodes.retain(|number, _| reachable.contains(number));
        loss
    }

    fn make_durable(&mut self, change: &Change) {
        match change {
            Change::Add { at, inode } => self.put(at, *inode),
            Change::Remove { at, inode } => self.take(at, *inode),
            Change::Move { from, to, inode } => {
                self.take(from, *inode);
                self.put(to, *inode);
            }
        }
    }

    fn put(&mut self, (directory, name): &Place, inode: u64) {
        if let Ok(directory) = self.directory_mut(*directory) {
            directory.durable.insert(name.clone(), inode);
        }
    }

    fn take(&mut self, (directory, name): &Place, inode: u64) {
        if let Ok(directory) = self.directory_mut(*directory)
            && directory.durable.get(name) == Some(&inode)
        {
            directory.durable.remove(name);
        }
    }

    fn reachable(&self) -> BTreeSet<u64> {
        let (mut reachable, mut next) = (BTreeSet::from([ROOT]), vec![ROOT]);
        while let Some(number) = next.pop() {
            if let Ok(directory) = self.directory(number) {
                next.extend(directory.now.values().filter(|inode| reachable.insert(**inode)));
            }
        }
        reachable
    }

    fn directory(&self, number: u64) -> Result<&Directory, DiskError> {
        match &self.nodes.get(&number).ok_or(DiskError::Stale)?.body {
            Body::Directory(directory) => Ok(directory),
            Body::File(_) => Err(DiskError::NotADirectory),
        }
    }

    fn directory_mut(&mut self, number: u64) -> Result<&mut Directory, DiskError> {
        match &mut self.nodes.get_mut(&number).ok_or(DiskError::Stale)?.body {
            Body::Directory(directory) => Ok(directory),
            Body::File(_) => Err(DiskError::NotADirectory),
        }
    }

    fn content(&self, number: u64) -> Result<&Content, DiskError> {
        match &self.nodes.get(&number).ok_or(DiskError::Stale)?.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(DiskError::IsADirectory),
        }
    }

    fn content_mut(&mut self, number: u64) -> Result<&mut Content, DiskError> {
        match &mut self.nodes.get_mut(&number).ok_or(DiskError::Stale)?.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(DiskError::IsADirectory),
        }
    }
}

fn index(offset: u64) -> Result<usize, DiskError> {
    usize::try_from(offset).map_err(|_| DiskError::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(Attributes::new(0o755, 0, 0))
    }

    fn file(disk: &mut Disk, name: &str, content: &[u8]) -> u64 {
        let attributes = Attributes::new(0o600, 0, 0);
        let inode = disk.create(ROOT, OsStr::new(name), Kind::File, attributes).unwrap().number;
        disk.write(inode, 0, content).unwrap();
        inode
    }

    /// Names in the root with the content of each, after a cut.
    fn after_cut(make: impl Fn(&mut Disk)) -> BTreeSet<String> {
        let after = |seed| {
            let mut disk = disk();
            make(&mut disk);
            disk.cut(&mut Rng::with_seed(seed));
            let entries = disk.entries(ROOT).unwrap();
            let names = entries.iter().map(|entry| {
                let content = match entry.kind {
                    Kind::File => String::from_utf8_lossy(disk.read(entry.inode, 0, 9).unwrap()),
                    Kind::Directory => "/".into(),
                };
                format!("{}={content}", entry.name.display())
            });
            names.collect::<Vec<_>>().join(" ")
        };
        (0..200).map(after).collect()
    }

    fn set<const N: usize>(all: [&str; N]) -> BTreeSet<String> {
        all.map(str::to_owned).into()
    }

    #[test]
    fn a_synced_file_has_no_durable_name_before_its_directory_is_synced() {
        let synced = |disk: &mut Disk| {
            let inode = file(disk, "a", b"x");
            disk.sync(inode).unwrap();
        };
        assert_eq!(after_cut(synced), set(["", "a=x"]));
        let named = |disk: &mut Disk| {
            synced(disk);
            disk.sync_directory(ROOT).unwrap();
        };
        assert_eq!(after_cut(named), set(["a=x"]));
    }

    #[test]
    fn a_durable_name_may_lead_to_a_file_that_lost_its_content() {
        let named = |disk: &mut Disk| {
            file(disk, "a", b"x");
            disk.sync_directory(ROOT).unwrap();
        };
        assert_eq!(after_cut(named), set(["a=", "a=\0", "a=x"]));
    }

    #[test]
    fn a_rename_over_a_file_leaves_the_old_or_the_new_one() {
        let renamed = |disk: &mut Disk| {
            let (old, new) = (file(disk, "a", b"old"), file(disk, "b", b"new"));
            disk.sync(old).unwrap();
            disk.sync(new).unwrap();
            disk.sync_directory(ROOT).unwrap();
            disk.rename((ROOT, OsStr::new("b")), (ROOT, OsStr::new("a")), true).unwrap();
        };
        assert_eq!(after_cut(renamed), set(["a=old b=new", "a=new"]));
        let synced = |disk: &mut Disk| {
            renamed(disk);
            disk.sync_directory(ROOT).unwrap();
        };
        assert_eq!(after_cut(synced), set(["a=new"]));
    }

    #[test]
    fn unsynced_changes_of_a_directory_survive_in_any_combination() {
        let changed = |disk: &mut Disk| {
            let inode = file(disk, "a", b"x");
            disk.sync(inode).unwrap();
            disk.sync_directory(ROOT).unwrap();
            disk.link(inode, ROOT, OsStr::new("b")).unwrap();
            disk.remove(ROOT, OsStr::new("a"), Kind::File).unwrap();
        };
        assert_eq!(after_cut(changed), set(["a=x", "a=x b=x", "b=x", ""]));
    }

    #[test]
    fn a_directory_is_durable_once_the_one_above_is_synced() {
        let made = |disk: &mut Disk| {
            let attributes = Attributes::new(0o700, 0, 0);
            let inode =
                disk.create(ROOT, OsStr::new("d"), Kind::Directory, attributes).unwrap().number;
            disk.create(inode, OsStr::new("a"), Kind::File, attributes).unwrap();
            disk.sync_directory(inode).unwrap();
        };
        assert_eq!(after_cut(made), set(["", "d=/"]));
        let synced = |disk: &mut Disk| {
            made(disk);
            disk.sync_directory(ROOT).unwrap();
        };
        assert_eq!(after_cut(synced), set(["d=/"]));
    }

    #[test]
    fn what_is_there_is_not_replaced_or_removed_by_mistake() {
        let mut disk = disk();
        file(&mut disk, "a", b"");
        let attributes = Attributes::new(0o700, 0, 0);
        let [a, b, d] = ["a", "b", "d"].map(OsStr::new);
        let inner = disk.create(ROOT, d, Kind::Directory, attributes).unwrap().number;
        disk.create(inner, a, Kind::File, attributes).unwrap();
        file(&mut disk, "b", b"");
        let exists = Err(DiskError::Exists);
        assert_eq!(disk.rename((ROOT, a), (ROOT, b), false), exists);
        assert_eq!(disk.create(ROOT, a, Kind::File, attributes).map(drop), exists);
        assert_eq!(disk.remove(ROOT, d, Kind::Directory), Err(DiskError::NotEmpty));
        assert_eq!(disk.remove(ROOT, d, Kind::File), Err(DiskError::IsADirectory));
        assert_eq!(disk.rename((ROOT, a), (ROOT, d), true), Err(DiskError::IsADirectory));
    }

    #[test]
    fn an_inode_without_a_name_is_gone_after_a_cut() {
        let mut disk = disk();
        let inode = file(&mut disk, "a", b"x");
        disk.remove(ROOT, OsStr::new("a"), Kind::File).unwrap();
        assert_eq!(disk.read(inode, 0, 1), Ok(&b"x"[..]));
        disk.sync_directory(ROOT).unwrap();
        disk.cut(&mut Rng::with_seed(1));
        assert_eq!(disk.read(inode, 0, 1), Err(DiskError::Stale));
    }
}
