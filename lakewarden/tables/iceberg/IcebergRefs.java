// Tags of a table, changed inside the driver's JVM through Iceberg's ManageSnapshots: each call is one commit.
// Compiled by Janino like IcebergBridge.java, beside which it stands; the same rules hold.
package lakewarden;

import org.apache.iceberg.Table;

public final class IcebergRefs {
  /** The age is counted by Iceberg from the moment the snapshot was committed, not from now. */
  public void createTag(Table table, String name, long snapshotId, long maxAgeMillis) {
    table.manageSnapshots().createTag(name, snapshotId).setMaxRefAgeMs(name, maxAgeMillis).commit();
  }

  public void retainTag(Table table, String name, long maxAgeMillis) {
    table.manageSnapshots().setMaxRefAgeMs(name, maxAgeMillis).commit();
  }

  public void dropTag(Table table, String name) {
    table.manageSnapshots().removeTag(name).commit();
  }
}
