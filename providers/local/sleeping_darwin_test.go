package local

import "testing"

// sleeping counts the processes in this machine that kept its environment.
func sleeping(t *testing.T, c *cloud, id string) int {
	t.Helper()
	return len(strayed(t, c, id))
}

// strayed lists them.
func strayed(t testing.TB, _ *cloud, id string) []int {
	t.Helper()
	carriers, err := carriersOf(EnvMachine + "=" + id)
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, p := range carriers {
		found = append(found, p.PID)
	}
	return found
}
