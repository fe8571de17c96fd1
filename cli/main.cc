// The command line program `tilewise`.
#include "program.h"

int main(int argc, char** argv) { return tilewise::cli::run_program(argc, argv); }
