//! Serves a disk over FUSE. The kernel caches nothing: neither content (`FOPEN_DIRECT_IO`) nor names
//! nor attributes, so that a cut takes back what processes saw before.
//!
//! A synchronous write (`O_DSYNC`, `O_SYNC`) arrives as a write with these flags and no sync.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::content::SECTOR_BYTES;
use crate::disk::{Attributes, DiskError, Inode, Kind};
use crate::fault::Fault;
use crate::power::{Power, Running};

/// Nothing is cached.
const NO_CACHE: Duration = Duration::ZERO;
/// Space of the disk, in blocks of 4 KiB: 4 GiB.
const BLOCKS: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 4096;

/// A disk as a file system.
#[derive(Debug)]
pub struct Mount(Arc<Power>);

impl Mount {
    /// Serves this disk.
    pub fn of(power: Arc<Power>) -> Self {
        Self(power)
    }

    fn create_entry(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        kind: Kind,
        mode: u32,
    ) -> Result<Inode, DiskError> {
        let attributes = Attributes::new(mode, request.uid(), request.gid());
        self.0.change(false, |running| {
            need_room(&running)?;
            running.disk.create(parent.0, name, kind, attributes)
        })
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, kind: Kind, reply: ReplyEmpty) {
        done(self.0.change(false, |running| running.disk.remove(parent.0, name, kind)), reply);
    }
}

/// A write with the flags of its descriptor; returns how many bytes are written.
fn write(
    power: &Power,
    inode: u64,
    offset: u64,
    data: &[u8],
    flags: i32,
) -> Result<usize, DiskError> {
    let is_direct = flags & libc::O_DIRECT != 0;
    let is_synchronous = flags & libc::O_DSYNC != 0;
    let is_aligned = (offset | data.len() as u64).is_multiple_of(SECTOR_BYTES as u64);
    if is_direct && !is_aligned {
        return Err(DiskError::Invalid);
    }
    power.change(is_synchronous, |mut running| {
        let mut data = data;
        if running.has(Fault::ShortWrite) && data.len() > 1 && running.random.bool() {
            data = &data[..data.len() / 2];
        }
        let end = offset + data.len() as u64;
        if running.has(Fault::Full) && !running.disk.has_room(inode, end)? {
            return Err(DiskError::NoSpace);
        }
        running.disk.write(inode, offset, data)?;
        if is_synchronous && running.happens(Fault::EioOnWrite) {
            if is_direct {
                running.disk.tear(inode, offset, data.len(), running.random)?;
            } else {
                running.disk.lose_pages(inode, running.random)?;
            }
            return Err(DiskError::Io);
        }
        let is_ignored = power.ignored.has_file(&running.disk.names(inode), offset);
        if is_synchronous && running.syncs && !is_ignored {
            running.disk.sync_range(inode, offset, data.len())?;
        }
        Ok(data.len())
    })
}

fn sync(power: &Power, inode: u64) -> Result<(), DiskError> {
    power.change(true, |mut running| {
        if running.happens(Fault::EioOnSync) {
            running.disk.lose_pages(inode, running.random)?;
            return Err(DiskError::Io);
        }
        if running.syncs && !power.ignored.has_file(&running.disk.names(inode), 0) {
            running.disk.sync(inode)?;
        }
        Ok(())
    })
}

fn need_room(running: &Running<'_>) -> Result<(), DiskError> {
    if running.has(Fault::Full) { Err(DiskError::NoSpace) } else { Ok(()) }
}

fn errno(error: DiskError) -> Errno {
    match error {
        DiskError::NotFound => Errno::ENOENT,
        DiskError::Exists => Errno::EEXIST,
        DiskError::NotADirectory => Errno::ENOTDIR,
        DiskError::IsADirectory => Errno::EISDIR,
        DiskError::NotEmpty => Errno::ENOTEMPTY,
        DiskError::Stale => Errno::ESTALE,
        DiskError::Io => Errno::EIO,
        DiskError::NoSpace => Errno::ENOSPC,
        DiskError::Invalid => Errno::EINVAL,
    }
}

fn described(inode: &Inode) -> FileAttr {
    let Attributes { mode, uid, gid, modified } = inode.attributes;
    FileAttr {
        ino: INodeNo(inode.number),
        size: inode.length,
        blocks: inode.length.div_ceil(SECTOR_BYTES as u64),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: file_type(inode.kind),
        perm: u16::try_from(mode).expect("permissions have twelve bits"),
        nlink: inode.links,
        uid,
        gid,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
    }
}

fn done(result: Result<(), DiskError>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

fn entry(result: Result<Inode, DiskError>, reply: ReplyEntry) {
    match result {
        Ok(inode) => reply.entry(&NO_CACHE, &described(&inode), Generation(0)),
        Err(error) => reply.error(errno(error)),
    }
}

fn attributes(result: Result<Inode, DiskError>, reply: ReplyAttr) {
    match result {
        Ok(inode) => reply.attr(&NO_CACHE, &described(&inode)),
        Err(error) => reply.error(errno(error)),
    }
}

impl Filesystem for Mount {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.0.read(|disk| disk.lookup(parent.0, name)), reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attributes(self.0.read(|disk| disk.inode(ino.0)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = self.0.change(false, |running| {
            let now = running.disk.attributes_mut(ino.0)?;
            now.mode = mode.map_or(now.mode, |mode| mode & 0o7777);
            (now.uid, now.gid) = (uid.unwrap_or(now.uid), gid.unwrap_or(now.gid));
            if let Some(size) = size {
                running.disk.set_len(ino.0, size)?;
            }
            running.disk.inode(ino.0)
        });
        attributes(set, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        entry(self.create_entry(request, parent, name, Kind::Directory, mode & !umask), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, Kind::File, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, Kind::Directory, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let renamed = self.0.change(false, |running| {
            running.disk.rename((parent.0, name), (newparent.0, newname), replace)
        });
        done(renamed, reply);
    }

    fn link(
        &self,
        _: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.0.change(false, |running| {
            need_room(&running)?;
            running.disk.link(ino.0, newparent.0, newname)
        });
        entry(linked, reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.0.read(|disk| disk.inode(ino.0)) {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.create_entry(request, parent, name, Kind::File, mode & !umask) {
            Ok(inode) => reply.created(
                &NO_CACHE,
                &described(&inode),
                Generation(0),
                FileHandle(0),
                FopenFlags::FOPEN_DIRECT_IO,
            ),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.0.read(|disk| Ok(disk.read(ino.0, offset, size as usize)?.to_vec()));
        match read {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match write(&self.0, ino.0, offset, data, flags.0) {
            Ok(written) => reply.written(u32::try_from(written).expect("a request is shorter")),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        done(sync(&self.0, ino.0), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.0.change(true, |running| {
            if running.syncs && !self.0.ignored.has_directories() {
                running.disk.sync_directory(ino.0)?;
            }
            Ok(())
        });
        done(synced, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.0.read(|disk| disk.entries(ino.0)) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(error)),
        };
        let dots = [".", ".."].map(|name| (ino, FileType::Directory, name.into()));
        let entries = entries
            .into_iter()
            .map(|entry| (INodeNo(entry.inode), file_type(entry.kind), entry.name));
        let all = (1..).zip(dots.into_iter().chain(entries));
        for (next, (inode, kind, name)) in all.skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if reply.add(inode, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCK_BYTES, 255, BLOCK_BYTES);
    }
}
