//! Reads the variables that a launcher sets for this process: those of torchrun and Kubeflow, of SLURM, of Open MPI,
//! and of an indexed Job of Kubernetes.
//!
//! The first launcher whose variables are set wins. This module does not schedule: launchers place and restart
//! processes.

use daemon::config::RANKS_MAX;
use std::fmt;

/// The port of rank 0 if the launcher does not set one.
pub const PORT: u16 = 29_590;

/// This process's place among the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    pub launcher: Launcher,
    pub rank: usize,
    pub ranks: usize,
    /// Index of the rank on its machine, from 0.
    pub local_rank: usize,
    /// Host and port of rank 0, if the launcher names its machine.
    pub leader: Option<(String, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, Kubeflow, or any other that sets the variables of PyTorch.
    Torch,
    Slurm,
    OpenMpi,
    /// An indexed Job, with one rank per pod.
    Kubernetes,
}

/// The variable with the pod's index in an indexed Job.
const JOB_INDEX: &str = "JOB_COMPLETION_INDEX";

impl Launcher {
    const ALL: [Launcher; 4] = [Launcher::Torch, Launcher::Slurm, Launcher::OpenMpi, Launcher::Kubernetes];

    /// Returns the variables of rank, number of ranks and rank on the machine.
    fn variables(self) -> [&'static str; 3] {
        match self {
            Launcher::Torch => ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
            Launcher::Slurm => ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
            Launcher::OpenMpi => {
                ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"]
            }
            // The last two are set by the manifest.
            Launcher::Kubernetes => [JOB_INDEX, "WORLD_SIZE", "LOCAL_RANK"],
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torch => "torchrun or Kubeflow",
            Launcher::Slurm => "SLURM",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Kubernetes => "an indexed Job of Kubernetes",
        })
    }
}

/// Reason why the variables cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LauncherError {
    #[error(
        "{set} is set, but {missing} is not: start every rank by {launcher}, or set `--ranks 1` to train in this process alone"
    )]
    Incomplete { launcher: Launcher, set: &'static str, missing: &'static str },
    #[error(
        "{name} is {value:?}, and has to be a number from {min} to {max}: look at the launcher's settings, or set `--ranks 1` to ignore it"
    )]
    Number { name: &'static str, value: String, min: usize, max: usize },
    #[error("{name} is {value:?}, which is no name or address of a machine: set rank_address under [train]")]
    Host { name: &'static str, value: String },
}

/// Reads the launcher's variables through `variable`; `None` if no launcher started this process.
///
/// # Errors
/// If they are incomplete or contradict each other.
pub fn launched(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launched>, LauncherError> {
    let is_set = |name: &str| variable(name).is_some();
    let found = Launcher::ALL.into_iter().find(|launcher| {
        let [rank, ranks, _] = launcher.variables();
        match launcher {
            Launcher::Torch => is_set(rank) || is_set(ranks) && !is_set(JOB_INDEX),
            Launcher::Slurm | Launcher::OpenMpi => is_set(rank),
            // Pods of an indexed Job may be separate seats: only its manifest shows that they are ranks of one.
            Launcher::Kubernetes => is_set(rank) && is_set(ranks),
        }
    });
    let Some(launcher) = found else { return Ok(None) };
    let [rank_name, ranks_name, local_name] = launcher.variables();
    let number = |name: &'static str, min: usize, max: usize| {
        let Some(value) = variable(name) else {
            let set = if name == rank_name { ranks_name } else { rank_name };
            return Err(LauncherError::Incomplete { launcher, set, missing: name });
        };
        match value.trim().parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(LauncherError::Number { name, value: shown(&value), min, max }),
        }
    };
    let ranks = number(ranks_name, 1, RANKS_MAX as usize)?;
    let rank = number(rank_name, 0, ranks - 1)?;
    let local_rank = match variable(local_name) {
        Some(_) => number(local_name, 0, ranks - 1)?,
        None => 0,
    };
    let leader = match launcher {
        Launcher::Torch => match variable("MASTER_ADDR") {
            Some(host) => {
                // torchrun itself listens at MASTER_PORT.
                let port = match variable("MASTER_PORT") {
                    Some(_) => number("MASTER_PORT", 1, usize::from(u16::MAX) - 1)? + 1,
                    None => usize::from(PORT),
                };
                let port = u16::try_from(port).expect("it is bounded above");
                Some((checked_host("MASTER_ADDR", host.trim())?, port))
            }
            None => None,
        },
        Launcher::Slurm => match variable("SLURM_JOB_NODELIST") {
            Some(nodes) => {
                let wrong = || LauncherError::Host { name: "SLURM_JOB_NODELIST", value: shown(&nodes) };
                let first = first_node(&nodes).ok_or_else(wrong)?;
                Some((checked_host("SLURM_JOB_NODELIST", &first)?, PORT))
            }
            None => None,
        },
        Launcher::OpenMpi | Launcher::Kubernetes => None,
    };
    Ok(Some(Launched { launcher, rank, ranks, local_rank, leader }))
}

/// Truncates a value for an error.
fn shown(value: &str) -> String {
    value.chars().take(60).collect()
}

fn checked_host(name: &'static str, host: &str) -> Result<String, LauncherError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    match !host.is_empty() && host.len() <= 253 && host.chars().all(allowed) {
        true => Ok(host.to_owned()),
        false => Err(LauncherError::Host { name, value: shown(host) }),
    }
}

/// Returns the first machine of a list in SLURM's format: `gpu[03-06,9],login` begins with `gpu03`.
fn first_node(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(ranges) = rest.strip_prefix('[') else { return Some(name.to_owned()) };
    let (ranges, suffix) = ranges.split_once(']')?;
    let number = ranges.split([',', '-']).next()?;
    let suffix = suffix.split(',').next().unwrap_or_default();
    let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
    // A second pair of brackets is a grid of machines, which is not supported.
    (is_number && !suffix.contains('[')).then(|| format!("{name}{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Launched>, LauncherError> {
        launched(|name| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn each_launcher_is_read_and_the_first_one_wins() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(
            of(&[("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "a")]),
            Ok(None),
            "a batch script's step-less part"
        );
        let torch = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.2"),
            ("MASTER_PORT", "29500"),
        ];
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "16"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_JOB_NODELIST", "gpu[03-06,9],login"),
        ];
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ];
        let expected = |launcher, rank, ranks, local_rank, leader: Option<(&str, u16)>| {
            let leader = leader.map(|(host, port)| (host.to_owned(), port));
            Ok(Some(Launched { launcher, rank, ranks, local_rank, leader }))
        };
        let by_torch = expected(Launcher::Torch, 3, 8, 1, Some(("10.0.0.2", 29_501)));
        let by_slurm = expected(Launcher::Slurm, 5, 16, 1, Some(("gpu03", PORT)));
        assert_eq!(of(&torch), by_torch);
        assert_eq!(of(&slurm), by_slurm);
        assert_eq!(of(&mpi), expected(Launcher::OpenMpi, 0, 2, 0, None));
        assert_eq!(of(&[&mpi[..], &slurm, &torch].concat()), by_torch);
        assert_eq!(of(&[&mpi[..], &slurm].concat()), by_slurm);
        let kubeflow = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-master-0")];
        assert_eq!(of(&kubeflow), expected(Launcher::Torch, 0, 2, 0, Some(("job-master-0", PORT))));

        let job = [("JOB_COMPLETION_INDEX", "3"), ("WORLD_SIZE", "4")];
        assert_eq!(of(&job), expected(Launcher::Kubernetes, 3, 4, 0, None));
        assert_eq!(of(&job[..1]), Ok(None), "a pod that is a seat of its own");
        // A launcher that runs inside the pods.
        assert_eq!(of(&[&job[..1], &torch].concat()), by_torch);
        assert_eq!(of(&[&job[..], &mpi].concat()), expected(Launcher::OpenMpi, 0, 2, 0, None));
    }

    #[test]
    fn wrong_values_are_named() {
        let says = |variables: &[(&str, &str)], says: &str| {
            let error = of(variables).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        says(&[("RANK", "0")], "RANK is set, but WORLD_SIZE is not");
        says(&[("WORLD_SIZE", "2")], "WORLD_SIZE is set, but RANK is not");
        says(&[("SLURM_PROCID", "0")], "SLURM_NTASKS is not");
        let job = ("JOB_COMPLETION_INDEX", "4");
        says(&[job, ("WORLD_SIZE", "four")], "WORLD_SIZE is \"four\"");
        says(
            &[job, ("WORLD_SIZE", "4")],
            "JOB_COMPLETION_INDEX is \"4\", and has to be a number from 0 to 3",
        );
        for (name, value) in [
            ("RANK", "2"),
            ("RANK", "-1"),
            ("RANK", ""),
            ("RANK", "99999999999999999999999"),
            ("WORLD_SIZE", "0"),
            ("WORLD_SIZE", "1025"),
            ("WORLD_SIZE", "two"),
            ("LOCAL_RANK", "7"),
            ("MASTER_PORT", "65535"),
            ("MASTER_PORT", "0"),
        ] {
            let mut all = vec![
                ("RANK", "1"),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "a"),
                ("MASTER_PORT", "1"),
                ("LOCAL_RANK", "0"),
            ];
            all.retain(|(of, _)| *of != name);
            all.push((name, value));
            says(&all, &format!("{name} is {value:?}"));
        }
        for host in ["", "a b", "a;rm -rf", "ä", &"x".repeat(300)] {
            says(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", host)], "no name or address");
        }
        for nodes in ["", "a[", "a[]", "a[x-y]", "a[1][2]", "a[1]b[2]", "[", "a[1 2]"] {
            let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", nodes)];
            says(&slurm, "SLURM_JOB_NODELIST");
        }
    }

    #[test]
    fn the_first_machine_of_a_list_is_found() {
        for (list, first) in [
            ("one", "one"),
            ("one,two", "one"),
            ("gpu[001-004]", "gpu001"),
            ("gpu[7,9-12],cpu1", "gpu7"),
            ("r[1-2]-node,x", "r1-node"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(values in prop::collection::vec(prop::option::of("\\PC{0,12}|[0-9]{1,6}|[a-z]{0,3}\\[[0-9,-]{0,6}\\]?"), 10)) {
            let names = [
                "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NODELIST", "JOB_COMPLETION_INDEX",
            ];
            let read = launched(|name| names.iter().position(|of| *of == name).and_then(|at| values[at].clone()));
            if let Ok(Some(found)) = read {
                prop_assert!(found.rank < found.ranks && found.ranks <= RANKS_MAX as usize);
                prop_assert!(found.local_rank < found.ranks);
                prop_assert!(found.leader.is_none_or(|(host, port)| !host.is_empty() && 0 < port));
            }
        }
    }
}
