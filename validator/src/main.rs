fn main() -> std::process::ExitCode {
    validator::cli::main()
}
