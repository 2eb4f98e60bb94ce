//! Forwards the commands that moved from `miner` and `validator` to `mettle`, for one release.

use anyhow::{Context as _, bail};
use protocol::Role;
use std::{ffi::OsString, path::PathBuf, process::Command};

const MOVED: &[&str] = &[
    "audit",
    "claim",
    "dataset",
    "keys",
    "model",
    "nominate",
    "nominations",
    "proxy",
    "receipts",
    "register",
    "report",
    "rotate-key",
    "run",
    "set-commission",
    "set-payout",
    "stake",
    "status",
    "unnominate",
    "unstake",
    "withdraw",
];

/// Replaces this process by `mettle` with the same arguments, if the first one is a command that moved there.
///
/// # Errors
/// If the command is unknown, or `mettle` is neither in this program's directory nor on the path.
pub fn forward(role: Role, arguments: &[OsString]) -> anyhow::Result<()> {
    let command = arguments.first().and_then(|first| first.to_str()).unwrap_or_default();
    let Some(arguments) = moved(role, arguments) else {
        bail!("`{role}` has no command `{command}`: see `{role} --help` and `mettle --help`");
    };
    tracing::warn!(
        "`{role} {command}` moved: use `mettle {command}`. The next release of `{role}` does not forward it"
    );
    Err(replace_process(Command::new(mettle()).args(arguments))).context(
        "could not run `mettle`: install it in this program's directory (`cargo install --path mettle/cli`)",
    )
}

/// The arguments for `mettle`; `None` if the command did not move. `register` gets the role as its next argument.
fn moved(role: Role, arguments: &[OsString]) -> Option<Vec<OsString>> {
    let command = MOVED.iter().find(|command| arguments.first().is_some_and(|first| first == *command))?;
    let mut arguments = arguments.to_vec();
    if *command == "register" {
        arguments.insert(1, role.to_string().into());
    }
    Some(arguments)
}

/// The `mettle` in this program's directory, or else the one on the path.
fn mettle() -> PathBuf {
    let name = format!("mettle{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(&name));
    beside.filter(|path| path.exists()).unwrap_or_else(|| name.into())
}

#[cfg(unix)]
fn replace_process(command: &mut Command) -> std::io::Error {
    std::os::unix::process::CommandExt::exec(command)
}

#[cfg(not(unix))]
fn replace_process(command: &mut Command) -> std::io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(role: Role, line: &str) -> Option<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let words = moved(role, &arguments)?;
        Some(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_moved_command_keeps_its_arguments_and_register_gets_the_role() {
        assert_eq!(check(Role::Miner, "claim --yes").as_deref(), Some("claim --yes"));
        assert_eq!(
            check(Role::Validator, "register --stake 5").as_deref(),
            Some("register validator --stake 5")
        );
        assert_eq!(check(Role::Miner, "strat"), None);
    }

    #[test]
    fn an_unknown_command_is_refused_by_name() {
        let error = forward(Role::Miner, &["strat".into()]).unwrap_err().to_string();
        assert!(error.contains("`miner` has no command `strat`"), "{error}");
    }
}
