//! The settings of the store's process: one bucket and one key for each seat, and for the owner of the run.

use crate::{
    layout::{ORIGIN, Plan},
    seats::HONEST,
};
use protocol::Role;
use serde::{Deserialize, Serialize};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

/// The settings file of the store's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreSettings {
    pub listen: SocketAddr,
    pub dir: PathBuf,
    /// Name, access key, secret key.
    pub buckets: Vec<(String, String, String)>,
    /// Bucket and strategy of each adversary: its bucket may answer readers with faults.
    #[serde(default)]
    pub strategies: Vec<(String, String)>,
    /// Validators in the run.
    #[serde(default)]
    pub validators: u16,
    /// Where faults are ordered, and the token that it takes; tests use it.
    pub admin: Option<(u16, String)>,
}

impl StoreSettings {
    /// The store of a plan, with its objects in `dir`. It listens to everyone only where its seats are elsewhere.
    pub fn of(plan: &Plan, dir: PathBuf) -> StoreSettings {
        let host: Option<IpAddr> = plan.store_host.parse().ok();
        let ip = host.filter(IpAddr::is_loopback).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (access_key, secret_key) = plan.origin_keys.clone();
        let mut buckets = vec![(ORIGIN.to_owned(), access_key, secret_key)];
        buckets.extend(
            plan.seats
                .iter()
                .map(|seat| (seat.name.clone(), seat.access_key.clone(), seat.secret_key.clone())),
        );
        let listen = SocketAddr::new(ip, plan.store_port);
        let adversaries = plan.seats.iter().filter(|seat| seat.strategy != HONEST);
        let strategies = adversaries.map(|seat| (seat.name.clone(), seat.strategy.clone())).collect();
        let validators = plan.seats_of(Role::Validator).count();
        let validators = u16::try_from(validators).unwrap_or(u16::MAX);
        StoreSettings { listen, dir, buckets, strategies, validators, admin: plan.store_admin.clone() }
    }

    /// Replaces the file, which only this user can read.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        Ok(node::durable::write_atomic(file, &serde_json::to_vec_pretty(self)?)?)
    }
}
