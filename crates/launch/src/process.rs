use std::fmt::Display;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::parent_id;
use std::time::Duration;

use super::announcement::Announcement;
use super::client::{self, Client};
use super::connection::Deadline;
use super::environment::{self, Environment, Ranks, Variables};
use super::error::LaunchError;
use super::job::{self, Job, Name, Nonce};
use super::launcher::Launcher;
use super::rendezvous::Rendezvous;
use super::root::{Root, TELL};
use super::wire::Message;
use super::{connection, directory};
use libnccl::{Communicator, Config, Nccl, UniqueId, Version};

use crate::Result;

/// The time between two attempts to listen on a port that is in use.
const LISTEN: Duration = Duration::from_millis(50);

/// The time to look up the own host. The others can connect meanwhile.
const RESOLVE: Duration = Duration::from_secs(1);

/// This process as a launcher has started it: one rank of a job.
///
/// ```
/// use libnccl_launch::{Launch, Launcher};
///
/// let launch = Launch::from_variables([
///     ("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_LOCALID", "1"), ("SLURM_NODEID", "1"),
///     ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"), ("SLURM_STEP_NODELIST", "node[07-08]"),
///     ("SLURM_JOB_ID", "71"), ("SLURM_STEP_ID", "0"),
/// ])?;
/// assert_eq!((launch.launcher(), launch.rank(), launch.size()), (Launcher::Slurm, 3, 4));
/// assert_eq!((launch.local_rank(), launch.local_size()), (1, 2));
/// assert!(launch.rendezvous().unwrap().to_string().starts_with("tcp://node07:2"));
/// # Ok::<_, libnccl_launch::LaunchError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    environment: Environment,
    timeout: Duration,
}

impl Launch {
    /// Reads the variables of this process.
    ///
    /// # Errors
    /// [`LaunchError::NoLauncher`] if none of a launcher is set, [`LaunchError::Variables`] if one is missing or
    /// contradicts another, both .
    pub fn from_env() -> Result<Self> {
        Self::from_variables(libnccl::internal::environment::variables().filter_map(|(name, value)| {
            // Those that are not UTF-8 are no launcher's.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    /// Reads variables that were obtained in another way.
    ///
    /// # Errors
    /// The errors of [`from_env`](Self::from_env).
    pub fn from_variables<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Result<Self>
    where
        N: Into<String>,
        V: Into<String>,
    {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        let environment = environment::read(&Variables::new(variables), parent_id())?;
        Ok(Self { environment, timeout: Duration::from_secs(300) })
    }

    /// Sets the time for which this rank waits for all to join. Default: 5 minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the launcher.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        self.environment.launcher
    }

    /// Returns this process's rank, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.environment.ranks.rank as usize
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.environment.ranks.size as usize
    }

    /// Returns this process's number among those on its host, from 0.
    ///
    /// It is not always the number of its GPU: see [`device`](Self::device).
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.environment.ranks.local_rank as usize
    }

    /// Returns the number of ranks on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        self.environment.ranks.local_size as usize
    }

    /// Returns the number of the device for this rank, out of the `visible` devices of this process.
    ///
    /// This is device 0 if the process sees one device: SLURM's `--gpus-per-task=1`, Ray and others set `CUDA_VISIBLE_DEVICES` so that
    /// each process sees its own GPU. Otherwise it is the device with the [local rank](Self::local_rank).
    ///
    /// ```
    /// # use libnccl_launch::Launch;
    /// let launch = Launch::from_variables([
    ///     ("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "4"),
    ///     ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"),
    /// ])?;
    /// assert_eq!(launch.device(4)?, 3);
    /// assert_eq!(launch.device(1)?, 0);
    /// assert!(launch.device(2).unwrap_err().to_string().starts_with("4 ranks, 2 devices"));
    /// # Ok::<_, libnccl_launch::LaunchError>(())
    /// ```
    ///
    /// # Errors
    /// [`LaunchError::Devices`] if this host has more ranks than the process sees devices, except for one device, and if it sees none.
    pub fn device(&self, visible: usize) -> Result<usize> {
        match visible {
            1 => Ok(0),
            _ if visible < self.local_size() => {
                Err(LaunchError::Devices { ranks: self.local_size(), devices: visible })
            }
            _ => Ok(self.local_rank()),
        }
    }

    /// Returns the place where the ranks find rank 0; `None` for a single rank, which needs no other.
    #[must_use]
    pub fn rendezvous(&self) -> Option<&Rendezvous> {
        self.environment.rendezvous.as_ref()
    }

    /// Joins all ranks in a communicator: exchanges the id, and creates the communicator.
    ///
    /// On GPUs the rank belongs to the calling thread's current device, so make [`device`](Self::device) current first. The
    /// communicator has the timeout of this launch as its [`Config::timeout`]; [`communicator_with`](Self::communicator_with) sets
    /// another one.
    ///
    /// All ranks call it, each as often as the others and in the same order: [`communicator_named`](Self::communicator_named) finds
    /// out if they do not. One that cannot begin, for instance as its options are invalid, tells the
    /// others why, if the library is NCCL 2.14.3 or newer.
    ///
    /// # Errors
    /// The errors of [`unique_id`](Self::unique_id) and of [`CommunicatorBuilder::init`](libnccl::communicator::CommunicatorBuilder::init).
    pub fn communicator(&self, nccl: &Nccl) -> Result<Communicator> {
        self.communicator_with(nccl, &Config::new())
    }

    /// Joins all ranks in a communicator as [`communicator`](Self::communicator) does, with options.
    ///
    /// Without a [`Config::timeout`] it gets the timeout of this launch, if the library is NCCL 2.14.3 or newer.
    ///
    /// # Errors
    /// The errors of [`communicator`](Self::communicator).
    pub fn communicator_with(&self, nccl: &Nccl, config: &Config) -> Result<Communicator> {
        self.communicator_named("", nccl, config)
    }

    /// Joins all ranks in a communicator as [`communicator_with`](Self::communicator_with) does, by a name that has to be the same
    /// on all of them.
    ///
    /// Ranks that create several communicators have to create them in the same order. If they do not, they join each other's
    /// communicators, and their collectives have wrong results. Names turn this mistake into an error of all ranks. A name is
    /// compared before NCCL is called; [`Config::name`] sets the one in NCCL's log.
    ///
    /// ```no_run
    /// # use libnccl::{Config, Nccl};
    /// # let launch = libnccl_launch::Launch::from_env()?;
    /// # let nccl = Nccl::load()?;
    /// let data = launch.communicator_named("data", &nccl, &Config::new())?;
    /// let model = launch.communicator_named("model", &nccl, &Config::new())?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LaunchError::RankFailed`] if a rank passes another name than rank 0, with both names; the errors of
    /// [`communicator`](Self::communicator).
    pub fn communicator_named(&self, name: &str, nccl: &Nccl, config: &Config) -> Result<Communicator> {
        let (size, rank, name) = (self.size(), self.rank(), Name::new(name));
        if nccl.version() < Version::new(2, 14, 3) {
            let id = self.exchange(nccl, name, |id| Ok(*id))?;
            return Ok(nccl.communicator(size, rank, &id).config(config).init()?);
        }
        let timeout = config.timeout_duration().unwrap_or(self.timeout);
        let config = config.clone().timeout(timeout);
        // In a group, the call returns before the others have joined: an error of this rank can still be sent to them.
        let pending = nccl.try_group(|g| {
            self.exchange(nccl, name, |id| nccl.communicator(size, rank, id).config(&config).init_in(g))
        })?;
        Ok(pending.finish()?)
    }

    /// Returns the same new id to all ranks, once all have called this; rank 0 creates it.
    ///
    /// The process of rank 0 must live until all ranks have joined a communicator with it.
    ///
    /// # Errors
    /// [`LaunchError::MissingRanks`] if not all ranks have called this within the [timeout](Self::timeout) of this one;
    /// [`LaunchError::RankFailed`] if another rank has failed; [`LaunchError::Rendezvous`] if the exchange cannot succeed;
    /// those of [`Nccl::unique_id`].
    pub fn unique_id(&self, nccl: &Nccl) -> Result<UniqueId> {
        self.exchange(nccl, Name::ANY, |id| Ok(*id))
    }

    /// Takes part in the exchange as a rank that has failed, instead of [`communicator`](Self::communicator) or
    /// [`unique_id`](Self::unique_id): the others, which would wait for this rank until their timeouts, end with the reason.
    ///
    /// Returns when all others have it, or after 30 s or the [timeout](Self::timeout), if that is shorter.
    ///
    /// ```no_run
    /// # use libnccl::Nccl;
    /// # let launch = libnccl_launch::Launch::from_env()?;
    /// let nccl = Nccl::load().inspect_err(|error| launch.fail(error))?;
    /// # Ok::<_, libnccl_launch::LaunchError>(())
    /// ```
    pub fn fail(&self, reason: impl Display) {
        let (rank, reason) = (self.rank(), reason.to_string());
        let deadline = Deadline::after(self.timeout.min(TELL));
        let Some((rendezvous, job)) = self.others(Name::ANY) else { return };
        log::error!("rank {rank} tells the other ranks that it has failed: {reason}");
        let told = if rank > 0 {
            self.client(rendezvous, job, deadline, Some(reason)).join().map(drop)
        } else {
            self.listen(rendezvous, &job, deadline, |root| {
                root.tell_failure(reason);
                Ok(())
            })
        };
        match told {
            // What the others are told: this reason, or that of a rank that failed before.
            Ok(()) | Err(LaunchError::RankFailed { .. }) => {}
            Err(error) => log::warn!("the other ranks were not told that rank {rank} has failed: {error}"),
        }
    }

    /// Returns what `begin` makes of the id that all ranks get, once all have begun.
    fn exchange<T>(
        &self,
        nccl: &Nccl,
        name: Name,
        begin: impl FnOnce(&UniqueId) -> libnccl::Result<T>,
    ) -> Result<T> {
        let deadline = Deadline::after(self.timeout);
        let Some((rendezvous, job)) = self.others(name) else {
            return Ok(begin(&nccl.unique_id()?)?);
        };
        if job.rank > 0 {
            let rank = job.rank;
            let client = self.client(rendezvous, job, deadline, None);
            let member = client.join()?;
            return match begin(&member.id) {
                Ok(begun) => client.report(member, &Message::Begun).map(|()| begun),
                Err(error) => {
                    let _ = client.report(member, &Message::Failed(rank, error.to_string()));
                    Err(error.into())
                }
            };
        }
        // NCCL also raises the limit of open files in it, which many ranks need.
        let id = nccl.unique_id().inspect_err(|error| self.fail(error))?;
        self.listen(rendezvous, &job, deadline, |root| root.exchange(&id, begin))
    }

    /// Returns the place where this rank meets others, if there are any.
    fn others(&self, name: Name) -> Option<(&Rendezvous, Job)> {
        let Environment { ranks: Ranks { rank, size, .. }, rendezvous, job, is_open, .. } = &self.environment;
        let hash = job::hash(job);
        let rendezvous = rendezvous.as_ref().filter(|_| *size > 1)?;
        Some((rendezvous, Job { rank: *rank, size: *size, hash, is_open: *is_open, name }))
    }

    fn client<'a>(
        &self,
        rendezvous: &'a Rendezvous,
        job: Job,
        deadline: Deadline,
        failure: Option<String>,
    ) -> Client<'a> {
        let (is_private, key) = (self.environment.is_private, self.key());
        Client { rendezvous, is_private, job, key, deadline, failure }
    }

    /// Returns the key of rank 0's address in a store.
    fn key(&self) -> String {
        format!("/libnccl/{}/address", self.environment.job)
    }

    /// Does the work of rank 0 where the others find it.
    fn listen<T>(
        &self,
        rendezvous: &Rendezvous,
        job: &Job,
        deadline: Deadline,
        work: impl FnOnce(&mut Root<'_>) -> Result<T>,
    ) -> Result<T> {
        let fail = |problem: String| LaunchError::Rendezvous {
            rendezvous: Box::new(rendezvous.clone()),
            problem: problem.into(),
        };
        match rendezvous {
            Rendezvous::Tcp { host, port } => {
                let mut is_reported = false;
                let listener = loop {
                    match connection::listen(Some(host), *port) {
                        Ok(listener) => break listener,
                        // That of an earlier attempt may still end.
                        Err(error) if error.kind() == ErrorKind::AddrInUse && !deadline.has_passed() => {
                            if !std::mem::replace(&mut is_reported, true) {
                                log::warn!(
                                    "rank 0 waits for {rendezvous}, which is in use; if another job is there, ranks of this \
                                     one may join it, unless each job has a LIBNCCL_JOB or a port of its own"
                                );
                            }
                            deadline.sleep(LISTEN);
                        }
                        Err(error) => return Err(fail(format!("rank 0 cannot listen there: {error}"))),
                    }
                };
                let elsewhere = connection::leads_elsewhere(host, &deadline.part(RESOLVE));
                if let Some(problem) = &elsewhere {
                    log::warn!("{problem}: the other ranks may not reach rank 0 by it");
                }
                let mut done = work(&mut Root::new(&listener, job, 0, deadline));
                if let (Err(LaunchError::MissingRanks { detail, .. }), Some(problem)) = (&mut done, elsewhere)
                {
                    *detail = format!("{detail}; {problem}").into();
                }
                done
            }
            Rendezvous::TcpStore { host, port } => {
                let store = loop {
                    match client::connect_to_store(host, *port, &deadline) {
                        Ok(store) => break store,
                        Err(problem) if deadline.has_passed() => return Err(fail(problem)),
                        Err(_) => deadline.sleep(LISTEN),
                    }
                };
                let (listener, mut announcement) =
                    self.announce().map_err(|error| fail(error.to_string()))?;
                // The address with which this host reaches its own store is one that others may reach it by.
                announcement.hosts.extend(store.local_address().map(|address| address.ip().to_string()));
                let text = announcement.to_string();
                store
                    .set(&self.key(), text.as_bytes(), &deadline)
                    .map_err(|error| fail(error.to_string()))?;
                let done = work(&mut Root::new(&listener, job, announcement.nonce, deadline));
                // The store outlives this job.
                let _ = store.delete(&self.key(), &Deadline::after(Duration::from_secs(1)));
                done
            }
            Rendezvous::Directory(path) => {
                let prepare = || {
                    if self.environment.is_private {
                        directory::remove_leftovers(path);
                        directory::create_private(path)?;
                    }
                    let (listener, announcement) = self.announce()?;
                    let published = directory::publish(path, job, &announcement)?;
                    Ok((listener, announcement.nonce, published))
                };
                let (listener, nonce, published) =
                    prepare().map_err(|error: std::io::Error| fail(error.to_string()))?;
                let done = work(&mut Root::new(&listener, job, nonce, deadline));
                drop(published);
                if self.environment.is_private {
                    let _ = std::fs::remove_dir(path);
                }
                done
            }
        }
    }

    /// Listens on a free port, and returns its announcement.
    fn announce(&self) -> std::io::Result<(TcpListener, Announcement)> {
        let nonce: Nonce = job::nonce();
        // Others than this host's processes have no business there if all ranks are on it.
        let is_local = self.environment.ranks.local_size == self.environment.ranks.size;
        let hosts = if is_local { vec!["127.0.0.1".into()] } else { connection::own_hosts() };
        let listener = connection::listen(is_local.then_some("127.0.0.1"), 0)?;
        let port = listener.local_addr()?.port();
        Ok((listener, Announcement { nonce, port, hosts }))
    }
}
