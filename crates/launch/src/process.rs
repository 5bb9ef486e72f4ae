use std::fmt::Display;
use std::os::unix::process::parent_id;
use std::time::Duration;

use super::connection::Deadline;
use super::environment::{self, Environment};
use super::error::{LaunchError, Result};
use super::exchange::Exchange;
use super::job::Launcher;
use super::job::Name;
use super::rendezvous::Rendezvous;
use super::root::TELL;
use super::wire::Message;
use libnccl::{Communicator, Config, Nccl, UniqueId, Version};

/// The rank of this process in a job, as assigned by a launcher.
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
/// assert_eq!((launch.device(2)?, launch.device(1)?), (1, 0));
/// assert!(launch.rendezvous().unwrap().to_string().starts_with("tcp://node07:2"));
/// # Ok::<_, libnccl_launch::LaunchError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    environment: Environment,
    timeout: Duration,
}

impl Launch {
    /// Reads the launcher's variables from the environment.
    ///
    /// # Errors
    /// [`LaunchError::NoLauncher`] if no launcher's variable is set. [`LaunchError::Variables`] if a variable is missing or
    /// invalid, or contradicts another variable.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(libnccl::internal::environment::variables().filter_map(|(name, value)| {
            // Launchers set only UTF-8.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    /// Reads the launcher's variables from `variables` instead of the environment.
    ///
    /// # Errors
    /// Returns the errors of [`from_env`](Self::from_env).
    pub fn from_variables<N: Into<String>, V: Into<String>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self> {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        let environment = environment::read(variables, parent_id())?;
        Ok(Self { environment, timeout: Duration::from_secs(300) })
    }

    /// Sets how long this rank waits for all ranks to join. Default: 5 minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the launcher whose variables were read.
    pub fn launcher(&self) -> Launcher {
        self.environment.launcher
    }

    /// Returns this process's rank, counted from 0.
    pub fn rank(&self) -> usize {
        self.environment.ranks.rank as usize
    }

    /// Returns the number of ranks of the job.
    pub fn size(&self) -> usize {
        self.environment.ranks.size as usize
    }

    /// Returns this process's index among the ranks on its host, counted from 0.
    ///
    /// The index of its GPU may differ: see [`device`](Self::device).
    pub fn local_rank(&self) -> usize {
        self.environment.ranks.local_rank as usize
    }

    /// Returns the number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.environment.ranks.local_size as usize
    }

    /// Returns the index of this rank's device. `visible` must be the number of devices that this process sees.
    ///
    /// The index is 0 if the process sees one device, as with SLURM's `--gpus-per-task=1` and Ray. Otherwise it is the [local
    /// rank](Self::local_rank).
    ///
    /// # Errors
    /// [`LaunchError::Devices`] if the process sees fewer devices than this host has ranks, unless it sees exactly one.
    pub fn device(&self, visible: usize) -> Result<usize> {
        let ranks = self.local_size();
        match visible {
            1 => Ok(0),
            devices if devices < ranks => Err(LaunchError::Devices { ranks, devices }),
            _ => Ok(self.local_rank()),
        }
    }

    /// Returns where the ranks find rank 0; `None` for a job of one rank without `LIBNCCL_RENDEZVOUS`.
    pub fn rendezvous(&self) -> Option<&Rendezvous> {
        self.environment.rendezvous.as_ref()
    }

    /// Exchanges a unique id, and creates a communicator of all ranks.
    ///
    /// On GPUs, first make [`device`](Self::device) the current device of the calling thread. With NCCL 2.14.3 or newer, the
    /// communicator gets the timeout of this launch.
    ///
    /// All ranks must create the same communicators in the same order; [`communicator_named`](Self::communicator_named) checks
    /// the order. If a rank cannot begin to create the communicator, for instance because its options are invalid, the other
    /// ranks' errors contain the reason (NCCL 2.14.3 or newer).
    ///
    /// # Errors
    /// Returns the errors of [`unique_id`](Self::unique_id) and [`init`](libnccl::communicator::CommunicatorBuilder::init).
    pub fn communicator(&self, nccl: &Nccl) -> Result<Communicator> {
        self.communicator_with(nccl, &Config::new())
    }

    /// Creates a communicator of all ranks, with the options in `config`. See [`communicator`](Self::communicator).
    ///
    /// If `config` has no [timeout](Config::timeout), the communicator gets the timeout of this launch (NCCL 2.14.3 or newer).
    ///
    /// # Errors
    /// Returns the errors of [`communicator`](Self::communicator).
    pub fn communicator_with(&self, nccl: &Nccl, config: &Config) -> Result<Communicator> {
        self.communicator_named("", nccl, config)
    }

    /// Creates a communicator of all ranks, after checking that all ranks have passed the same `name`. Otherwise the same as
    /// [`communicator_with`](Self::communicator_with).
    ///
    /// Without names, ranks that create communicators in different orders join wrong ones, and collectives have wrong results.
    /// With names, all ranks get an error instead. NCCL's log does not show this name, but [`Config::name`].
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
    /// [`LaunchError::RankFailed`] if a rank passes a name that differs from rank 0's name; the error contains both names. Also
    /// returns the errors of [`communicator`](Self::communicator).
    pub fn communicator_named(&self, name: &str, nccl: &Nccl, config: &Config) -> Result<Communicator> {
        let (size, rank, name) = (self.size(), self.rank(), Name::new(name));
        if nccl.version() < Version::new(2, 14, 3) {
            let id = self.exchange(nccl, name, |id| Ok(*id))?;
            return Ok(nccl.communicator(size, rank, &id).config(config).init()?);
        }
        let config = config.clone().timeout(config.timeout_duration().unwrap_or(self.timeout));
        // In a group, the call returns before the others have joined: this rank can still send them its error.
        let pending = nccl.try_group(|g| {
            self.exchange(nccl, name, |id| nccl.communicator(size, rank, id).config(&config).init_in(g))
        })?;
        Ok(pending.finish()?)
    }

    /// Waits until all ranks have called this method, and returns the same new id on all ranks. Rank 0 creates the id.
    ///
    /// The process of rank 0 must not exit before all ranks have joined a communicator with this id.
    ///
    /// # Errors
    /// [`LaunchError::MissingRanks`] if other ranks have not called this method within the [timeout](Self::timeout).
    /// [`LaunchError::RankFailed`] if another rank has failed. [`LaunchError::Rendezvous`] if the exchange fails for another
    /// reason. On rank 0, also the errors of [`Nccl::unique_id`].
    pub fn unique_id(&self, nccl: &Nccl) -> Result<UniqueId> {
        self.exchange(nccl, Name::ANY, |id| Ok(*id))
    }

    /// Sends the other ranks the reason why this rank cannot call [`communicator`](Self::communicator) or
    /// [`unique_id`](Self::unique_id). The other ranks' calls return an error with this reason instead of timing out.
    ///
    /// Waits until rank 0 has sent the reason to the other ranks, for at most 30 s and the [timeout](Self::timeout).
    pub fn fail(&self, reason: impl Display) {
        let (rank, reason) = (self.rank(), reason.to_string());
        let deadline = Deadline::after(self.timeout.min(TELL));
        let Some(exchange) = self.others(Name::ANY, deadline) else { return };
        log::error!("rank {rank} notifies the other ranks that it has failed: {reason}");
        let notified = match rank {
            0 => exchange.listen(|root| {
                root.tell(&Message::Failed(0, reason));
                Ok(())
            }),
            _ => exchange.join(Some(&reason)).map(drop),
        };
        match notified {
            // The others get this reason, or the reason of a rank that failed earlier.
            Ok(()) | Err(LaunchError::RankFailed { .. }) => {}
            Err(error) => log::warn!("the other ranks were not notified that rank {rank} failed: {error}"),
        }
    }

    /// Calls `begin` with the id that all ranks get, waits until all have begun, and returns the result of `begin`.
    fn exchange<T>(
        &self,
        nccl: &Nccl,
        name: Name,
        begin: impl FnOnce(&UniqueId) -> libnccl::Result<T>,
    ) -> Result<T> {
        let Some(exchange) = self.others(name, Deadline::after(self.timeout)) else {
            return Ok(begin(&nccl.unique_id()?)?);
        };
        let rank = self.environment.ranks.rank;
        if rank > 0 {
            let (id, root) = exchange.join(None)?;
            return match begin(&id) {
                Ok(begun) => exchange.report(root, &Message::Begun).map(|()| begun),
                Err(error) => {
                    let _ = exchange.report(root, &Message::Failed(rank, error.to_string()));
                    Err(error.into())
                }
            };
        }
        // This call also makes NCCL raise the limit of open files, which many ranks need.
        let id = nccl.unique_id().inspect_err(|error| self.fail(error))?;
        exchange.listen(|root| root.exchange(&id, begin))
    }

    /// Returns the exchange with the other ranks, or `None` for a single rank.
    fn others(&self, name: Name, deadline: Deadline) -> Option<Exchange<'_>> {
        let environment = &self.environment;
        let rendezvous = environment.rendezvous.as_ref().filter(|_| environment.ranks.size > 1)?;
        Some(Exchange { environment, rendezvous, name, deadline })
    }
}
