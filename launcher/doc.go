// Package launcher gives one training job its own disposable cluster: it rents a cheap head and spot workers from a provider, boots them side by side,
// forms the training world, replaces workers as preemption notices come in, and deletes everything it made at the end.
//
// The whole use in one screen:
//
//	job, err := launcher.Load("job.hcl", launcher.LoadOptions{})
//	if err != nil {
//		log.Fatal(err) // one *DiagnosticsError with every problem of the file
//	}
//	result, err := launcher.Run(ctx, job, launcher.Options{
//		OnEvent: func(e launcher.Event) { fmt.Println(e.At, e.Kind, e.Node) },
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	fmt.Println(result.Exit, result.SpendUSD, result.Outputs)
//
// Run is Up and then Wait. Up returns a *Handle as soon as the run is on disk and its supervisor works; Handle.Detach leaves it once it no longer needs
// its caller. Attach finds a run again from its id, Down ends one and says what it found, List tells what runs.
//
// A run is held by the folder $LAUNCHER_HOME/runs/RUN: its journal, logs, outputs and keys. One process at a time owns it, by a lock on the journal;
// others reach the run through the owner, over a socket, without noticing. Cancelling the context of Run tears the run
// down in the same way as an interrupt; cancelling that of Handle.Wait only stops waiting. The library installs no signal
// handlers and prints nothing.
package launcher
