fn main() -> std::process::ExitCode {
    miner::cli::main()
}
