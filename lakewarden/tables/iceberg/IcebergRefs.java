// Changes the tags of a table inside the driver's JVM through Iceberg's ManageSnapshots: each call is one
// commit. Compiled by Janino together with IcebergBridge.java; the same rules apply.
package lakewarden;

import org.apache.iceberg.Table;

public final class IcebergRefs {
  /** Iceberg counts the age from the commit of the snapshot, not from now. */
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
