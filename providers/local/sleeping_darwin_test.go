package local

import "testing"

// sleeping counts the processes in this machine that kept its environment.
func sleeping(t *testing.T, _ *cloud, id string) int {
	t.Helper()
	carriers, err := carriersOf(EnvMachine + "=" + id)
	if err != nil {
		t.Fatal(err)
	}
	return len(carriers)
}
