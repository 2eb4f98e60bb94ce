#![doc = include_str!("../README.md")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Returns the workspace's directory.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two directories below the workspace").to_owned()
}

/// A file that git tracks.
pub struct Tracked {
    /// Path relative to the root, separated by `/`.
    pub path: String,
    /// Contents; `None` if the file is not UTF-8.
    pub text: Option<String>,
}

/// Returns all files that git tracks, sorted by path. Without git, as in an unpacked archive, returns all files on
/// disk.
pub fn tracked() -> Vec<Tracked> {
    let root = root();
    let mut paths = listed_by_git(&root).unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root, "", &mut found);
        found
    });
    paths.sort();
    paths
        .into_iter()
        .filter_map(|path| {
            // Git still lists a file that was deleted since the last commit.
            let bytes = fs::read(root.join(&path)).ok()?;
            Some(Tracked { path, text: String::from_utf8(bytes).ok() })
        })
        .collect()
}

/// Returns path and text of the tracked files with one of these endings.
pub fn texts(endings: &[&str]) -> Vec<(String, String)> {
    tracked()
        .into_iter()
        .filter(|file| endings.iter().any(|ending| file.path.ends_with(ending)))
        .filter_map(|file| Some((file.path, file.text?)))
        .collect()
}

/// A package of the workspace, from `cargo metadata`.
pub struct Package {
    pub name: String,
    /// Directory of its `Cargo.toml`, relative to the root.
    pub directory: String,
    pub dependencies: Vec<Dependency>,
}

pub struct Dependency {
    pub name: String,
    /// True if it is a dev-dependency.
    pub dev: bool,
    pub default_features: bool,
}

/// Returns all packages of the workspace.
pub fn packages() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo is installed, as it runs this test");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a string").to_owned();
    let list = |value: &serde_json::Value| value.as_array().expect("a list").clone();

    let workspace = text(&metadata["workspace_root"]);
    list(&metadata["packages"])
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            directory: Path::new(&text(&package["manifest_path"]))
                .parent()
                .and_then(|directory| directory.strip_prefix(&workspace).ok())
                .expect("a member lies in the workspace")
                .to_string_lossy()
                .replace('\\', "/"),
            dependencies: list(&package["dependencies"])
                .iter()
                // Cargo never compiles these; they only select features (see `tests/Cargo.toml`).
                .filter(|dependency| dependency["target"] != "cfg(any())")
                .map(|dependency| Dependency {
                    name: text(&dependency["name"]),
                    dev: dependency["kind"] == "dev",
                    default_features: dependency["uses_default_features"] == true,
                })
                .collect(),
        })
        .collect()
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let output = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().ok()?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = listed.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

fn walk(root: &Path, below: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(root.join(below)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        let built = name == "target" || name == ".git";
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !built => walk(root, &path, found),
            Ok(kind) if kind.is_file() => found.push(path),
            _ => {}
        }
    }
}
