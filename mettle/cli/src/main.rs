fn main() -> std::process::ExitCode {
    mettle::cli::main()
}
