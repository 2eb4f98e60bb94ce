fn main() -> std::process::ExitCode {
    localnet::cli::main()
}
