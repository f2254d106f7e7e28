// Command elastic-sgd trains a digit classifier by data-parallel SGD on
// however many ranks its environment names, and survives losing them. It is a
// plain user program: all it knows of launcher are environment variables.
package main

import (
	"context"
	"os"

	"github.com/ephemeral-launcher/launcher/examples/elastic-sgd/train"
)

func main() {
	os.Exit(train.Main(context.Background(), os.Getenv, os.Stdout, os.Args[1:]))
}
