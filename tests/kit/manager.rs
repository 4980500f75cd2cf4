//! A stand-in for the service manager: it receives the notifications of a service, keeps the
//! descriptors that it is given, and hands them to the next start (`sd_notify(3)`,
//! `sd_listen_fds(3)`).
//!
//! Must not know what the descriptors are.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt as _, FdMapping};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::{PATIENCE, Server, Site};

/// Longest message that a service sends.
const MAX_MESSAGE: usize = 4096;

/// The manager of one site.
pub(crate) struct Manager {
    path: PathBuf,
    sockets: Vec<(String, OwnedFd)>,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Default)]
struct Heard {
    /// Every message in its order.
    messages: Vec<String>,
    stored: Vec<(String, OwnedFd)>,
}

impl Manager {
    /// A manager that keeps up to `max` descriptors (`FileDescriptorStoreMax=`), with these sockets
    /// of its own by their names.
    pub(crate) fn of(site: &Site, max: usize, sockets: Vec<(&str, OwnedFd)>) -> Self {
        let path = site.directory().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let heard = Arc::<Mutex<Heard>>::default();
        let told = Arc::clone(&heard);
        // It ends with the test's process.
        std::thread::spawn(move || {
            while let Some((message, descriptors)) = receive(&socket) {
                told.lock().unwrap().take(message, descriptors, max);
            }
        });
        let sockets = sockets.into_iter().map(|(name, socket)| (name.to_owned(), socket));
        Self { path, sockets: sockets.collect(), heard }
    }

    /// The socket that it hears at.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the service, with all that is kept for it.
    pub(crate) fn start(&self, site: &Site) -> Server {
        site.start_by(self.command(site))
    }

    /// The command line of the service, with all that is kept for it.
    pub(crate) fn command(&self, site: &Site) -> Command {
        self.command_after(site, "")
    }

    /// The same after a shell script such as `umask 077;`.
    pub(crate) fn command_after(&self, site: &Site, script: &str) -> Command {
        let heard = self.heard.lock().unwrap();
        let handed = self.sockets.iter().chain(&heard.stored);
        let (names, mappings): (Vec<_>, Vec<_>) = (3..)
            .zip(handed)
            .map(|(child_fd, (name, descriptor))| {
                let parent_fd = descriptor.as_fd().try_clone_to_owned().unwrap();
                (name.as_str(), FdMapping { parent_fd, child_fd })
            })
            .unzip();
        let mut command = site.service_after(&format!("export LISTEN_PID=$$; {script}"));
        command.env("NOTIFY_SOCKET", &self.path);
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
            command.fd_mappings(mappings).unwrap();
        }
        command
    }

    /// The names of the descriptors that are kept.
    pub(crate) fn kept(&self) -> Vec<String> {
        self.heard.lock().unwrap().stored.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Keeps a descriptor as if a service had stored it.
    pub(crate) fn keep(&self, name: &str, descriptor: OwnedFd) {
        self.heard.lock().unwrap().stored.push((name.to_owned(), descriptor));
    }

    /// Releases all descriptors that it keeps under a name.
    pub(crate) fn take(&self, name: &str) -> Vec<OwnedFd> {
        let mut heard = self.heard.lock().unwrap();
        let stored = std::mem::take(&mut heard.stored);
        let (taken, left) = stored.into_iter().partition(|(stored, _)| stored == name);
        heard.stored = left;
        taken.into_iter().map(|(_, descriptor): (String, _)| descriptor).collect()
    }

    /// Waits until it received this so many times; returns the last message with it.
    pub(crate) fn wait_for(&self, line: &str, times: usize) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            {
                let heard = self.heard.lock().unwrap();
                let mut with_it =
                    heard.messages.iter().filter(|m| m.lines().any(|one| one.starts_with(line)));
                if let Some(message) = with_it.nth(times - 1) {
                    return message.clone();
                }
                assert!(Instant::now() < end, "no {line}: {:?}", heard.messages);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Heard {
    fn take(&mut self, message: String, descriptors: Vec<OwnedFd>, max: usize) {
        let has = |line: &str| message.lines().any(|one| one == line);
        let name = message.lines().find_map(|line| line.strip_prefix("FDNAME="));
        let name = name.unwrap_or("stored").to_owned();
        if has("FDSTORE=1") {
            let room = max.saturating_sub(self.stored.len());
            // What finds no room is closed.
            let kept = descriptors.into_iter().take(room);
            self.stored.extend(kept.map(|descriptor| (name.clone(), descriptor)));
        } else if has("FDSTOREREMOVE=1") {
            self.stored.retain(|(stored, _)| *stored != name);
        }
        self.messages.push(message);
    }
}

fn receive(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let mut message = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut message)];
    let received = recvmsg(socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    assert!(!received.flags.contains(ReturnFlags::TRUNC));
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    Some((String::from_utf8(message[..received.bytes].to_vec()).unwrap(), descriptors))
}
