package main

import (
	"fmt"

	"github.com/crisp-cri/crisp/config"
)

// missing returns the files about images that the configuration names and the host lacks, with
// the consequences. Files that it does not name need not exist.
//
// crispd runs without them: provisioning may add them later. But a typing error must not go
// unnoticed: without its policy the node accepts every image.
func missing(c *config.Config) []string {
	type file struct{ key, path, follows string }
	files := []file{
		{"image.registries_conf", c.Image.RegistriesConf, "registries are asked as if it were empty"},
		{"image.policy_dir", c.Image.PolicyDir, "every namespace has the node's policy"},
		{"image.registries_dir", c.Image.RegistriesDir, "signatures are looked for nowhere"},
		{"image.auth_file", c.Image.AuthFile, "the node has no credentials"},
		{"image.auth_dir", c.Image.AuthDir, "no namespace has credentials of its own"},
		{"image.decryption_keys_path", c.Image.DecryptionKeysPath, "no encrypted image can be pulled"},
	}
	for _, dir := range c.Image.HostsDirs {
		files = append(files, file{"image.hosts_dirs", dir, "there is no hosts.toml"})
	}
	var list []string
	for _, f := range files {
		if f.path != "" && c.Origin(f.key) != "default" && !exists(f.path) {
			list = append(list, fmt.Sprintf("%s: %s: there is no %s: %s", c.Origin(f.key), f.key, f.path, f.follows))
		}
	}
	return list
}
