package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
)

// CheckFiles returns the policies, registries.conf and credentials that cannot be read, by file.
func CheckFiles(o Settings) []string {
	return slices.Concat(checkPolicies(o), checkAccess(o))
}

// CheckHosts returns the hosts.toml files that cannot be used, and the settings in others that
// cannot be translated.
func CheckHosts(o Settings) []string {
	var wrong []string
	for _, file := range hostsFiles(o.HostsDirs) {
		h, err := readHosts(file, filepath.Base(filepath.Dir(file)))
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("no image of that registry can be pulled: %v", err))
			continue
		}
		for _, p := range h.problems {
			wrong = append(wrong, fmt.Sprintf("%s: %s", file, p))
		}
	}
	return wrong
}

// checkPolicies returns the policies that cannot be read: they allow nothing.
func checkPolicies(o Settings) []string {
	var wrong []string
	if _, err := policyOf(&types.SystemContext{SignaturePolicyPath: o.PolicyPath}); err != nil {
		wrong = append(wrong, fmt.Sprintf("no image can be pulled or run: policy: %v", err))
	}
	for _, file := range filesIn(o.PolicyDir, "*.json") {
		if _, err := signature.NewPolicyFromFile(file); err != nil {
			wrong = append(wrong, fmt.Sprintf("no image can be pulled for, or run in, the namespace: %s: %v", file, err))
		}
	}
	return wrong
}

// checkAccess returns the registries.conf and credentials that cannot be read.
func checkAccess(o Settings) []string {
	var wrong []string
	if _, err := sysregistriesv2.TryUpdatingCache(&types.SystemContext{SystemRegistriesConfPath: o.RegistriesConf, SystemRegistriesConfDirPath: o.RegistriesConfDir}); err != nil {
		wrong = append(wrong, fmt.Sprintf("no image can be pulled: registries.conf: %v", err))
	}
	credentials := filesIn(o.AuthDir, "*.json")
	if o.AuthFile != "" {
		credentials = append(credentials, o.AuthFile)
	}
	for _, file := range credentials {
		if err := checkCredentials(file); err != nil {
			wrong = append(wrong, fmt.Sprintf("no image can be pulled by the credentials in %s: %v", file, err))
		}
	}
	return wrong
}

// checkCredentials reads a containers-auth.json(5) as far as that needs no helper program. A
// file that does not exist has no credentials.
func checkCredentials(file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c struct {
		Auths map[string]struct{ Auth string }
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	for registry, a := range c.Auths {
		if _, err := base64.StdEncoding.DecodeString(a.Auth); err != nil {
			return fmt.Errorf("auth of %s is not base64", registry) // and it is a secret
		}
	}
	return nil
}

// filesIn lists the files of dir, "" = none, that match.
func filesIn(dir, pattern string) []string {
	if dir == "" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(dir, pattern)) // only a bad pattern is an error
	return files
}
