package main

import ()

// runStop is delete, by the word that people try first. A pod that is wanted is started
// again when it ends, so that nothing less would stop it.
func runStop(c *cli, args []string) error {
	return runDelete(c, args)
}
