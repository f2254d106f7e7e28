// Command launcher-provider-lab is a plugin for tests: the local provider under another name, in a process of its own.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/ephemeral-launcher/launcher/providers"
	"github.com/ephemeral-launcher/launcher/providers/local"
	"github.com/ephemeral-launcher/launcher/providers/plugin"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "machine" { // its machines are run by this executable too
		os.Exit(local.MachineMain(context.Background(), os.Args[2:]))
	}
	plugin.Serve(lab{local.New(local.Options{})})
}

type lab struct{ *local.Provider }

func (l lab) Info(ctx context.Context) (providers.Info, error) {
	info, err := l.Provider.Info(ctx)
	// On a machine it is the machine's own variable that says where the ledger is.
	info.Name, info.CredentialEnv = "lab", []string{local.EnvRoot, "LAB_TOKEN"}
	return info, err
}

func (l lab) Offers(ctx context.Context, req providers.OffersRequest) ([]providers.Offer, error) {
	if os.Getenv("LAB_SECRET") != "" { // Info does not ask for it
		return nil, fmt.Errorf("the plugin sees more than Info names")
	}
	offers, err := l.Provider.Offers(ctx, req)
	for i := range offers {
		offers[i].Provider = "lab"
	}
	return offers, err
}
