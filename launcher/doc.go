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
//		Providers: launcher.Builtin(),
//		OnEvent:   func(e launcher.Event) { fmt.Println(e.At, e.Kind, e.Node) },
//	})
//	if err != nil {
//		log.Fatal(err)
//	}
//	fmt.Println(result.Exit, result.SpendUSD, result.Outputs)
//
// Run is Up and then Wait. Up returns a *Handle as soon as the run no longer needs its caller (or, with head { supervisor = "client" },
// as soon as it has begun); Attach finds a run again from its id, Down ends one and says what it found, List tells what runs.
//
// A run is held by the folder $LAUNCHER_HOME/runs/RUN: its journal, logs, outputs and keys. Cancelling the context of Run tears the run
// down in the same way as an interrupt; cancelling that of Handle.Wait only stops waiting.
package launcher
