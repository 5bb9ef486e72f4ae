use std::collections::BTreeMap;

use super::error::LaunchError;
use super::launcher::Launcher;
use super::rendezvous::is_host;

/// Environment variables. An empty one counts as not set.
#[derive(Debug)]
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(variables.into_iter().filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns a variable that the launcher always sets.
    pub(super) fn require(&self, launcher: Launcher, name: &str) -> Result<&str, LaunchError> {
        self.get(name).ok_or_else(|| problem(launcher, format!("{name} is not set")))
    }

    /// Returns a number, if the variable is set.
    pub(super) fn number(&self, launcher: Launcher, name: &str) -> Result<Option<u32>, LaunchError> {
        let parse = |value: &str| {
            // `parse` alone would take a sign.
            let digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|_| digits);
            number.ok_or_else(|| problem(launcher, format!("{name} is {value:?}; expected a number")))
        };
        self.get(name).map(parse).transpose()
    }

    /// Returns a number that the launcher always sets.
    pub(super) fn require_number(&self, launcher: Launcher, name: &str) -> Result<u32, LaunchError> {
        self.require(launcher, name)?;
        self.number(launcher, name).map(Option::unwrap_or_default)
    }

    /// Returns a port, if the variable is set.
    pub(super) fn port(&self, launcher: Launcher, name: &str) -> Result<Option<u16>, LaunchError> {
        let port = self.number(launcher, name)?.map(|number| {
            let port = u16::try_from(number).ok().filter(|port| *port > 0);
            port.ok_or_else(|| problem(launcher, format!("{name} is {number}; expected a port, 1 to 65535")))
        });
        port.transpose()
    }

    /// Returns the name or the address of a host, without the brackets of an IPv6 address, if the variable is set.
    pub(super) fn host(&self, launcher: Launcher, name: &str) -> Result<Option<String>, LaunchError> {
        let parse = |value: &str| {
            let bare = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
            let host = Some(bare.to_owned()).filter(|host| is_host(host));
            let expected = "expected the name or the IP address of a host, and nothing else";
            host.ok_or_else(|| problem(launcher, format!("{name} is {value:?}; {expected}")))
        };
        self.get(name).map(parse).transpose()
    }

    /// Returns a host that the launcher always sets.
    pub(super) fn require_host(&self, launcher: Launcher, name: &str) -> Result<String, LaunchError> {
        self.require(launcher, name)?;
        self.host(launcher, name).map(Option::unwrap_or_default)
    }
}

/// Creates a [`LaunchError::Variables`].
pub(super) fn problem(launcher: Launcher, problem: impl Into<Box<str>>) -> LaunchError {
    LaunchError::Variables { launcher, problem: problem.into() }
}
