// Package train is the elastic-sgd example: it trains a small network to read
// digits, by data-parallel stochastic gradient descent on the ranks of a world
// that may lose members at any time.
//
// One rank is one process. It learns its place from the variables that torchrun
// sets, finds the others through the store at MASTER_ADDR:MASTER_PORT, starts
// where the newest checkpoint ends, and sums gradients with the others over TCP
// at every step. Rank 0 saves a checkpoint every so many steps, when the ranks
// are told to leave, and when a rank is lost; then all exit, and the launcher
// starts the next generation.
//
// What a step does depends on the seed, the step and the weights, never on the
// world: any history of preemptions ends, on one processor architecture, at the
// same bits. (Between architectures the compiler may round differently.)
package train
